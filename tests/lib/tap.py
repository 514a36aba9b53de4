# SPDX-License-Identifier: MIT
"""TAP for tests that are scripts: each case is a function that returns, raises Skip or raises anything else."""

import subprocess
import traceback


class Skip(Exception):
    pass


class Failure(Exception):
    pass


def run(command, **options):
    """The standard output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False, **options)
    if done.returncode:
        raise Failure(f"{' '.join(map(str, command))}\nexit status {done.returncode}\n{done.stdout}")
    return done.stdout


def equal(actual, expected, what):
    if actual != expected:
        raise Failure(f"{what} is {actual!r}, not {expected!r}")


def main(cases):
    """Runs (name, function) pairs in order. Returns the exit status."""
    print(f"1..{len(cases)}", flush=True)
    n_failed = 0
    for number, (name, case) in enumerate(cases, 1):
        try:
            case()
            print(f"ok {number} - {name}", flush=True)
        except Skip as why:
            print(f"ok {number} - {name} # SKIP {why}", flush=True)
        except Exception as error:  # whatever goes wrong is this case's failure, and the next one still runs
            n_failed += 1
            print(f"not ok {number} - {name}")
            text = str(error) if isinstance(error, Failure) else traceback.format_exc()
            for line in text.splitlines():
                print(f"#   {line}", flush=True)
    return 1 if n_failed else 0
