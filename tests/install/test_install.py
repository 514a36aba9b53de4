#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The library as installed: a C and a C++ program find it by pkg-config alone, link it shared and static, and run.

Argument: the build folder."""

import glob
import os
import shutil
import sys
import tempfile

import tap

BUILD = sys.argv[1]
FOLDER = os.path.dirname(os.path.abspath(__file__))
STAGE = tempfile.mkdtemp(prefix="lend-install-")
EXPECTED = "lend 0.1.0: success\n"


def where(pattern):
    found = glob.glob(f"{STAGE}/**/{pattern}", recursive=True)
    if not found:
        raise tap.Failure(f"no {pattern} was installed")
    return found[0]


def flags(*options):
    """pkg-config as a user calls it; the paths in the .pc file are put under the stage."""
    env = {**os.environ, "PKG_CONFIG_LIBDIR": os.path.dirname(where("liblend.pc")), "PKG_CONFIG_SYSROOT_DIR": STAGE}
    return tap.run(["pkg-config", *options, "liblend"], env=env).split()


def install():
    tap.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", STAGE])
    for pattern in ("lend/lend.h", "liblend.so.0", "liblend.so", "liblend.a", "liblend.pc"):
        where(pattern)


def nothing_of_the_tests_is_installed():
    names = [os.path.basename(path) for path in glob.glob(f"{STAGE}/**", recursive=True)]
    tap.equal([name for name in names if "points" in name or "mutant" in name or "test" in name], [], "what is not ours")


def headers_are_all_there():
    source = sorted(os.listdir(os.path.join(FOLDER, "../../include/lend")))
    tap.equal(sorted(os.listdir(os.path.dirname(where("lend/lend.h")))), source, "the installed headers")


def consumer(compiler, standard, source, is_static):
    def case():
        if not shutil.which(compiler):
            raise tap.Skip(f"no {compiler} here")
        program = f"{STAGE}/consumer"
        libs = flags("--libs", *(["--static"] if is_static else []))
        if is_static:
            libs = ["-l:liblend.a" if lib == "-llend" else lib for lib in libs]
        tap.run([compiler, standard, "-pedantic", "-Wall", "-Wextra", "-Werror", *flags("--cflags"),
                 f"{FOLDER}/{source}", "-o", program, *libs])
        env = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(where("liblend.so.0"))}
        tap.equal(tap.run([program], env=env), EXPECTED, "what the program printed")
        needed = "liblend.so.0" in tap.run(["readelf", "-d", program])
        tap.equal(needed, not is_static, "whether it needs the shared library")
    return case


CASES = [
    ("install into an empty folder", install),
    ("nothing of the tests is installed", nothing_of_the_tests_is_installed),
    ("every public header is installed", headers_are_all_there),
    ("a C program, shared", consumer("gcc", "-std=c99", "consumer.c", False)),
    ("a C program, static", consumer("gcc", "-std=c99", "consumer.c", True)),
    ("a C++ program, shared", consumer("g++", "-std=c++11", "consumer.cpp", False)),
    ("a C++ program, static", consumer("g++", "-std=c++11", "consumer.cpp", True)),
]
try:
    STATUS = tap.main(CASES)
finally:
    shutil.rmtree(STAGE)
sys.exit(STATUS)
