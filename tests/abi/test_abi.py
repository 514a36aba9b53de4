#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a library exports is exactly what tests/abi/NAME.txt lists, which people review.

    test_abi.py NAME SHARED STATIC             tests; NAME is liblend or liblend-file
    test_abi.py NAME SHARED STATIC --update    writes NAME.txt anew"""

import os
import re
import sys

import tap

NAME, SHARED, STATIC = sys.argv[1:4]
FOLDER = os.path.dirname(os.path.abspath(__file__))
REVIEWED = f"{FOLDER}/{NAME}.txt"
HEADERS = os.path.normpath(FOLDER + "/../../include/lend")
VERSION = {"liblend": "LEND_0", "liblend-file": "LEND_FILE_0"}[NAME]
NEEDED = {"liblend": r"$^", "liblend-file": r"lib(lend|jansson)\.so"}[NAME]  # beside libc
INSTRUMENTS = ("__asan", "__tsan", "__ubsan", "__sanitizer", "__gcov")


def exported():
    """name@version of each dynamic symbol that the shared library defines."""
    lines = tap.run(["nm", "-D", "--defined-only", "--with-symbol-versions", SHARED]).splitlines()
    return sorted(name for kind, name in (line.split()[-2:] for line in lines)
                  if kind != "A" and not name.startswith(INSTRUMENTS))


def exports_are_reviewed():
    with open(REVIEWED, encoding="ascii") as file:
        reviewed = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    tap.equal({"new": sorted(set(exported()) - set(reviewed)), "gone": sorted(set(reviewed) - set(exported()))},
              {"new": [], "gone": []}, f"the difference from {NAME}.txt (test_abi.py --update, then review)")


def exports_are_declared():
    """Every function that the library's headers declare is there, and nothing else. file.h is liblend-file's."""
    declared = set()
    for name in (name for name in os.listdir(HEADERS) if (name == "file.h") == (NAME == "liblend-file")):
        with open(os.path.join(HEADERS, name), encoding="ascii") as file:
            text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
        declared |= set(re.findall(r"^LEND_API\b[^;(]*?\b(lend_\w+)\(", text, flags=re.MULTILINE))
    names = {name.split("@")[0] for name in exported()}
    tap.equal({"undeclared": sorted(names - declared), "missing": sorted(declared - names)},
              {"undeclared": [], "missing": []}, "the difference from the headers")


def nothing_internal_is_exported():
    tap.equal([name for name in exported() if not re.fullmatch(r"lend_[a-z][a-z0-9_]*@@" + VERSION, name)], [],
              "exports that are not lend_...@@" + VERSION)


def nothing_of_the_twin_is_shipped():
    """Test points and mutants are compiled out, of the static library as well."""
    text = tap.run(["nm", SHARED]) + tap.run(["nm", STATIC])
    tap.equal(sorted(set(re.findall(r"\S*(?:point_hit|pointed_|mutant|MUTANT)\S*", text))), [], "symbols of the twin")
    labels = [line for file in (SHARED, STATIC) for line in tap.run(["strings", "-n", "5", file]).splitlines()
              if re.fullmatch(r"sys\.\w+[<>]", line)]
    tap.equal(labels, [], "labels of the twin")


def soname_is_the_abi_version():
    dynamic = tap.run(["readelf", "-d", SHARED])
    with open(HEADERS + "/version.h", encoding="ascii") as file:
        abi = re.search(r"#define LEND_ABI_VERSION (\d+)", file.read())[1]
    tap.equal(re.findall(r"\(SONAME\).*\[(.*)\]", dynamic), [f"{NAME}.so.{abi}"], "the SONAME")
    if NAME == "liblend":
        tap.equal("NODELETE" in dynamic, True, "whether the library stays loaded")
    needed = [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
              if not re.match(r"lib(c|pthread)\.so|ld-linux|lib(a|ub|t)san", name) and not re.match(NEEDED, name)]
    tap.equal(needed, [], "other libraries needed")


if "--update" in sys.argv:
    with open(REVIEWED, "w", encoding="ascii") as out:
        out.write(f"# Exported by {NAME}.so. Written by test_abi.py --update; each change is reviewed.\n")
        out.writelines(name + "\n" for name in exported())
    sys.exit(0)
sys.exit(tap.main([
    ("exports are those of the reviewed list", exports_are_reviewed),
    ("exports are those that the headers declare", exports_are_declared),
    ("nothing internal is exported", nothing_internal_is_exported),
    ("nothing of the twin is shipped", nothing_of_the_twin_is_shipped),
    ("SONAME, nodelete and needed libraries", soname_is_the_abi_version),
]))
