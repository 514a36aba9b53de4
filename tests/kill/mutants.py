#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""mutants.py TWIN NAME=PROGRAM...: the test named after each mutant passes on the twin and fails on the mutant.

A mutant that survives means that a protection is not tested, or protects nothing."""

import subprocess
import sys


def run(program, test):
    """Exit status and output of one test."""
    done = subprocess.run([program, test], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return done.returncode, done.stdout


def main():
    twin, mutants = sys.argv[1], [word.split("=", 1) for word in sys.argv[2:]]
    print(f"1..{2 * len(mutants)}")
    number, failed = 0, 0
    for name, program in mutants:
        test = name.lower()
        for wanted, (status, output) in (("ok 1 - ", run(twin, test)), ("not ok 1 - ", run(program, test))):
            number += 1
            is_right = f"\n{wanted}{test}\n" in output and "killed after" not in output
            failed += not is_right
            what = "the protection works" if wanted.startswith("ok") else "is caught"
            print(f"{'ok' if is_right else 'not ok'} {number} - {name} {what}", flush=True)
            if not is_right:
                print("\n".join("#   " + line for line in [f"exit status {status}", *output.splitlines()]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
