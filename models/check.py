#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the models listed in cases.txt with Spin.

    check.py [small]    TAP, at the smallest bounds that show each case
    check.py full       a table, with the full bounds

The right rules must pass with a complete search; each removed rule must make the assertion fail that stands for its
outcome. Needs spin and gcc."""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = {"small": 120, "full": 7200}
# Which assertion stands for which outcome, so that a model that fails for another reason is noticed.
ASSERTION = {
    "wrong-bytes": r"assertion violated +\(?(bgen==g|!\(free_\)|!\(free2\)|!\(reused\))",
    "refused": r"assertion violated \(?(\( !\(must\)\|\||mayd\|\|)",
    "stuck": r"assertion violated \(?\(?(freed|free_\|\||!\(begun| !\(begun)",
    "torn": r"assertion violated \(x==\(t\+1\)\)",
    "early": r"assertion violated \(+took\[",
}


def cases(mode):
    with open(os.path.join(HERE, "cases.txt"), encoding="ascii") as table:
        for line in table:
            if line.startswith("#") or not line.strip():
                continue
            model, outcome, small, full = (part.strip() for part in line.split("|"))
            yield model, outcome, small.split()
            for flags in full.split(";") if mode == "full" else []:
                if flags.strip():
                    yield model, outcome, flags.split()


def command(words, folder, seconds):
    return subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=seconds, check=False).stdout


def verdict(text, outcome):
    """Empty when the run ended as it must."""
    error = re.search(r"pan:\d+: (.*?) \(at depth", text)
    if outcome == "ok":
        if error:
            return error[1]
        if not re.search(r"errors: 0\b", text):
            return "no result"
        is_complete = "Search not completed" not in text and "truncated" not in text
        return "" if is_complete else "the search was not complete"
    if not error:
        return "no error was found"
    return "" if re.search(ASSERTION[outcome], error[1]) else "another error: " + error[1]


def check(case, mode):
    model, outcome, flags = case
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lend-model-") as folder:
        made = command(["spin", "-a", *("-D" + flag for flag in flags), f"{HERE}/{model}.pml"], folder, 60)
        # A small search is over before an optimiser would be.
        optimiser = "-O2" if mode == "full" else "-O0"
        made += command(["gcc", "-w", optimiser, "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"], folder, 300)
        if not os.path.exists(f"{folder}/pan"):
            return case, "spin or gcc failed: " + made.strip(), "", 0.0
        try:
            bounds = ["-m10000000", "-w26"] if mode == "full" else ["-m100000", "-w20"]
            text = command(["./pan", *bounds], folder,
                           SECONDS[mode] * int(os.environ.get("LEND_TEST_SCALE", "1")))
        except subprocess.TimeoutExpired:
            return case, "out of time", "", time.monotonic() - start
    states = re.search(r"(\S+) states, stored", text)
    return case, verdict(text, outcome), f"{float(states[1]):,.0f}" if states else "", time.monotonic() - start


def main():
    mode = sys.argv[1] if len(sys.argv) > 1 else "small"
    if mode not in SECONDS:
        print(__doc__)
        return 2
    missing = [program for program in ("spin", "gcc") if not shutil.which(program)]
    if missing:
        print("1..0 # SKIP no " + " and no ".join(missing) + " here")
        return 0
    listed = list(cases(mode))
    head = f"{'model':7}{'flags':44}{'must':14}{'states':>14}{'s':>8}  result"
    print(head if mode == "full" else f"1..{len(listed)}", flush=True)
    n_failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number, (case, why, states, seconds) in enumerate(pool.map(lambda case: check(case, mode), listed), 1):
            model, outcome, flags = case
            n_failed += bool(why)
            if mode == "full":
                result = "FAILED: " + why if why else "as it must"
                print(f"{model:7}{' '.join(flags):44}{outcome:14}{states:>14}{seconds:8.1f}  {result}", flush=True)
                continue
            name = " ".join([model, *flags])
            print(f"{'not ok' if why else 'ok'} {number} - {name}: {outcome}", flush=True)
            for line in why.splitlines():
                print(f"#   {line}", flush=True)
    if mode == "full":
        print(f"{len(listed) - n_failed} as they must, {n_failed} not")
    return 1 if n_failed else 0


sys.exit(main())
