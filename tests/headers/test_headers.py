#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each public header compiles alone, as strict C99 and C++11, with gcc and clang; and beside dlpack.h, before and after.

Argument: the root of the sources."""

import os
import shutil
import subprocess
import sys
import tempfile

import tap

ROOT = sys.argv[1]
HEADERS = sorted(name for name in os.listdir(ROOT + "/include/lend") if name.endswith(".h"))
STRICT = ["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I" + ROOT + "/include"]
LANGUAGES = {"C99": (["gcc", "clang"], "c", "-std=c99"), "C++11": (["g++", "clang++"], "c++", "-std=c++11")}
DEBIAN = "/usr/include/dlpack/dlpack.h"
NEWER = ROOT + "/build-cache/dlpack/dlpack.h"

# What a program that mixes both does with the structs: the members are reached under DLPack's own tags.
LEGACY = """
int main(void) {
    DLManagedTensor tensor;
    tensor.dl_tensor.ndim = 0;
    tensor.deleter = 0;
    return (int)tensor.dl_tensor.ndim + kDLCPU - 1;
}
"""
VERSIONED = """
int versioned(DLManagedTensorVersioned *tensor);
int versioned(DLManagedTensorVersioned *tensor) {
    tensor->flags = DLPACK_FLAG_BITMASK_READ_ONLY;
    return (int)tensor->version.major + (int)kDLFloat4_e2m1fn;
}
"""


def compile_text(text, language, extra=()):
    compilers, kind, standard = LANGUAGES[language]
    for compiler in compilers:
        if not shutil.which(compiler):
            raise tap.Skip(f"no {compiler} here")
        tap.run([compiler, "-x", kind, standard, *STRICT, *extra, "-"], input=text)


def alone(header, language):
    twice = f"#include <lend/{header}>\n" * 2
    return lambda: compile_text(twice + "int main(void) { return 0; }\n", language)


def beside(dlpack, is_ours_first, language, text):
    def case():
        if not os.path.exists(dlpack):
            raise tap.Skip(f"no {dlpack} here (scripts/setup.sh fetches or installs it)")
        lines = ["#include <lend/lend.h>\n", f'#include "{dlpack}"\n']
        compile_text("".join(lines if is_ours_first else reversed(lines)) + text, language)
    return case


def layouts_agree():
    """Sizes and offsets of our structs are those of dlpack.h 1.x: both are compiled into static asserts."""
    if not os.path.exists(NEWER):
        raise tap.Skip(f"no {NEWER} here (scripts/setup.sh fetches it)")
    members = {
        "DLTensor": ["data", "device", "ndim", "dtype", "shape", "strides", "byte_offset"],
        "DLManagedTensor": ["dl_tensor", "manager_ctx", "deleter"],
        "DLManagedTensorVersioned": ["version", "manager_ctx", "deleter", "flags", "dl_tensor"],
        "DLDataType": ["code", "bits", "lanes"],
        "DLDevice": ["device_type", "device_id"],
    }
    constants = ["kDLCPU", "kDLCUDA", "kDLCUDAHost", "kDLCUDAManaged", "kDLInt", "kDLUInt", "kDLFloat", "kDLBfloat",
                 "kDLComplex", "kDLBool", "kDLFloat8_e3m4", "kDLFloat8_e4m3", "kDLFloat8_e4m3b11fnuz",
                 "kDLFloat8_e4m3fn", "kDLFloat8_e4m3fnuz", "kDLFloat8_e5m2", "kDLFloat8_e5m2fnuz",
                 "kDLFloat8_e8m0fnu", "kDLFloat6_e2m3fn", "kDLFloat6_e3m2fn", "kDLFloat4_e2m1fn",
                 "DLPACK_FLAG_BITMASK_READ_ONLY", "DLPACK_FLAG_BITMASK_IS_COPIED",
                 "DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED"]
    shown = [f"sizeof({tag})" for tag in members]
    shown += [f"offsetof({tag}, {member})" for tag, names in members.items() for member in names] + constants
    body = "".join(f'    printf("%s %llu\\n", "{e}", (unsigned long long)({e}));\n' for e in shown)
    program = "#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n" + body + "    return 0;\n}\n"
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for include in ("<lend/dlpack.h>", f'"{NEWER}"'):
            binary = folder + "/layout"
            tap.run(["gcc", "-x", "c", "-I" + ROOT + "/include", "-o", binary, "-"],
                    input=f"#include {include}\n" + program)
            tables.append(subprocess.run([binary], check=True, stdout=subprocess.PIPE, text=True).stdout)
    tap.equal(tables[0], tables[1], "the layout of our DLPack structs")


def cases():
    for language in LANGUAGES:
        for header in HEADERS:
            yield f"{header} alone as {language}", alone(header, language)
        for dlpack, name, text in ((DEBIAN, "Debian's", LEGACY), (NEWER, "a 1.x", LEGACY + VERSIONED)):
            for is_ours_first in (True, False):
                order = "before" if is_ours_first else "after"
                yield f"lend.h {order} {name} dlpack.h as {language}", beside(dlpack, is_ours_first, language, text)
    yield "our DLPack structs are laid out as dlpack.h 1.x", layouts_agree


sys.exit(tap.main(list(cases())))
