#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The unit suite on aarch64 (under qemu) and with musl. Each is a build of its own inside the build folder.

Arguments: the root of the sources, the build folder."""

import os
import shutil
import sys

import tap

SOURCE, BUILD = sys.argv[1:3]


def unit_suite(name, compiler, meson_option, emulator=()):
    def case():
        for program in (compiler, *emulator[:1]):
            if not shutil.which(program):
                raise tap.Skip(f"no {program} here")
        folder = f"{BUILD}/cross-{name}"
        # The compiler is what the option's file says.
        env = {key: value for key, value in os.environ.items() if key not in ("CC", "CXX", "CFLAGS", "LDFLAGS")}
        env["LEND_TEST_SCALE"] = "4"
        if not os.path.exists(folder + "/build.ninja"):
            shutil.rmtree(folder, ignore_errors=True)
            tap.run(["meson", "setup", "--werror", "-Dprograms=false", meson_option, folder, SOURCE], env=env)
        tap.run(["ninja", "-j2", "-C", folder], env=env)
        tap.run([sys.executable, f"{SOURCE}/tests/run.py", "--suite", "unit", "--wrapper",
                 " ".join(emulator), folder], env=env)
    return case


sys.exit(tap.main([
    ("unit suite on aarch64", unit_suite("aarch64", "aarch64-linux-gnu-gcc", f"--cross-file={SOURCE}/scripts/aarch64.ini",
                                         ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"))),
    ("unit suite with musl", unit_suite("musl", "musl-gcc", f"--native-file={SOURCE}/scripts/musl.ini")),
]))
