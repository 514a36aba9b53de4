#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs the tests of a build folder and adds up what their programs report (TAP).

    tests/run.py BUILD [--suite NAME]... [--not-suite NAME]... [--jobs N] [TEST]...

The tests are those that Meson knows. Suites whose limits users meet run twice: as given, and as user 12345 without
capabilities under 1,024 descriptors. The last line is `N passed, N failed, N skipped`; the exit status is 1 when a test
failed or none ran."""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

TWICE = {"proc", "queue", "python"}  # once more as an ordinary user
ONLY_ASKED = {"soak"}
USER, DESCRIPTORS = "12345", "1024"
RESULT = re.compile(r"^(not )?ok\b\s*\d*\s*(?:-\s*)?([^#]*?)\s*(?:#\s*(SKIP|TODO)\b\s*(.*))?$", re.IGNORECASE)
PLAN = re.compile(r"^1\.\.(\d+)\s*(?:#\s*SKIP\b\s*(.*))?$", re.IGNORECASE)


class Result:
    def __init__(self, name):
        self.name, self.seconds = name, 0.0
        self.passed, self.failed, self.skipped = 0, [], []  # count; (case, output); (case, why)


def parse_tap(result, text, status):
    """Adds up one program's TAP; what is missing from its plan, or a bad exit without a failed test, is a failure."""
    planned, seen, in_failed = None, 0, False
    for line in text.splitlines():
        plan, case = PLAN.match(line), RESULT.match(line)
        if plan:
            planned = int(plan[1])
            if planned == 0:
                result.skipped.append(("all", plan[2] or "no reason given"))
        elif case:
            seen += 1
            in_failed = bool(case[1])
            if case[1]:
                result.failed.append((case[2], []))
            elif case[3] and case[3].upper() == "SKIP":
                result.skipped.append((case[2], case[4] or "no reason given"))
            else:
                result.passed += 1
        elif in_failed:
            result.failed[-1][1].append(line)
    tail = text.splitlines()[-60:]
    if planned is None or seen != planned:
        result.failed.append(("the whole program", [f"{seen} of {planned} planned tests reported", *tail]))
    elif status and not result.failed and planned:
        result.failed.append(("the whole program", [f"exit status {status}", *tail]))


def copied(command, env, folders):
    """The command with every file of the checkout or build that it names copied to where any user may read it."""
    place = tempfile.mkdtemp(prefix="lend-test-")
    os.chmod(place, 0o755)

    def moved(word):
        if not os.path.isabs(word) or not os.path.exists(word) or not word.startswith(folders):
            return word
        target = place + word
        if not os.path.exists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            (shutil.copytree if os.path.isdir(word) else shutil.copy2)(word, target)
        return target

    command = [moved(word) for word in command]
    env = {key: moved(value) for key, value in env.items()}
    subprocess.run(["chmod", "-R", "a+rX", place], check=True)
    scratch = place + "/scratch"
    os.mkdir(scratch)
    os.chmod(scratch, 0o1777)
    env.update(HOME=scratch, TMPDIR=scratch)
    return command, env, place


def execute(command, env, folder, seconds):
    """Exit status and output; the whole session of the program is killed when it takes too long."""
    seconds *= int(os.environ.get("LEND_TEST_SCALE", "1"))
    try:
        process = subprocess.Popen(command, env=env, cwd=folder, text=True, errors="replace", start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        return 127, f"cannot start {command[0]}: {error}\n"
    try:
        text, _ = process.communicate(timeout=seconds)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        text, _ = process.communicate()
        return process.returncode, f"{text}\nkilled after {seconds} s\n"


def run_one(test, as_user, folders, launcher, wrapper):
    result = Result(test["name"] + (" (as user %s)" % USER if as_user else ""))
    command, extra, place = wrapper + test["cmd"], dict(test["env"]), None
    if as_user:
        command, extra, place = copied(command, extra, folders)
        shutil.copy2(launcher, place)
        command = [os.path.join(place, os.path.basename(launcher)), USER, DESCRIPTORS, *command]
    start = time.monotonic()
    status, text = execute(command, {**os.environ, **extra}, place or test["workdir"], test["timeout"] or 600)
    if test["protocol"] == "tap":
        parse_tap(result, text, status)
    elif status == 77:
        result.skipped.append((test["name"], text.strip().splitlines()[-1] if text.strip() else "no reason given"))
    elif status:
        result.failed.append((test["name"], text.splitlines()[-200:]))
    else:
        result.passed = 1
    if place:
        shutil.rmtree(place, ignore_errors=True)
    result.seconds = time.monotonic() - start
    return result


def picked(options):
    listing = subprocess.run(["meson", "introspect", "--tests", options.build], check=True, stdout=subprocess.PIPE)
    for test in json.loads(listing.stdout):
        suites = {suite.split(":")[-1] for suite in test["suite"]}
        if options.suite and not suites & set(options.suite):
            continue
        if suites & (set(options.not_suite) | (ONLY_ASKED - set(options.suite))):
            continue
        if options.test and test["name"] not in options.test:
            continue
        yield test, False
        if suites & TWICE and os.getuid() == 0:
            yield test, True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("test", nargs="*")
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--not-suite", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--wrapper", default="", help="words before each command, such as an emulator")
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders, launcher = (build + "/", source + "/"), os.path.join(build, "tests", "lend-as-uid")

    jobs = sorted(picked(options), key=lambda job: -job[0]["timeout"])  # the long ones first
    passed, failed, skipped = 0, [], []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(run_one, test, as_user, folders, launcher, options.wrapper.split())
                   for test, as_user in jobs]
        for future in concurrent.futures.as_completed(futures):
            result = future.result()
            print(f"{'FAILED' if result.failed else 'ok':6} {result.name:40} {result.passed:4} passed"
                  f" {len(result.failed):3} failed {len(result.skipped):3} skipped {result.seconds:7.1f} s", flush=True)
            passed += result.passed
            failed += [(result.name, *case) for case in result.failed]
            skipped += [(result.name, *case) for case in result.skipped]

    for program, case, why in skipped:
        print(f"skipped: {program}: {case}: {why}")
    for program, case, output in failed:
        print(f"\nFAILED: {program}: {case}")
        for line in output:
            print("    " + line)
    print(f"\n{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
