#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The two store-then-load pairs of the lease (L1/L2 and L5/L6) as machine code: the order that the models assume must
be in the instructions. Compiles the real src/share/ sources, for this machine and for aarch64.

Argument: the root of the sources."""

import os
import re
import shutil
import sys
import tempfile

import tap

SOURCE = sys.argv[1]
# lend__lease_take is inline; here it stands alone. lend__page_held and lend__ledger_try_reuse are in their own files.
TAKE = '#include "share/lease.h"\nint take(struct lend__peer *p, uint32_t s, uint64_t g);\n' \
       'int take(struct lend__peer *p, uint32_t s, uint64_t g) { return (int)lend__lease_take(p, s, g); }\n'
SOURCES = {"take": None, "lend__page_held": "src/share/page.c", "lend__ledger_try_reuse": "src/share/ledger.c"}

# What each instruction does to memory order. A "fence" is also whatever keeps an earlier store before a later load.
MACHINES = {
    "x86_64": {
        "rmw": r"\block (xadd|addl?|incl?|subl?)\b",
        "store": r"\bxchg\b|\bmfence\b",
        "load": r"\bmov\b.*\(%?r",
        "weak": None,
    },
    "aarch64": {
        # Out of line (libgcc picks LSE or exclusives at run time), inline LSE, or inline exclusives.
        "rmw": r"__aarch64_ldadd4_acq_rel|\bldaddal\b|\bldaxr\b",
        "store": r"\bstlr\b",
        "load": r"\bldar\b",
        "weak": r"\bldapr\b",
    },
}


def functions(text):
    """Name -> instructions, from objdump -d."""
    found, name = {}, None
    for line in text.splitlines():
        head = re.match(r"[0-9a-f]+ <([^>]+)>:", line)
        if head:
            name = re.sub(r"\.(part|isra|constprop|cold)[.0-9]*", "", head[1])
            found.setdefault(name, [])
        elif name and ":" in line:
            found[name].append(line)
    return found


def compiled(compiler, objdump):
    for program in (compiler, objdump):
        if not shutil.which(program):
            raise tap.Skip(f"no {program} here")
    code = {}
    with tempfile.TemporaryDirectory(prefix="lend-code-") as folder:
        for name, path in SOURCES.items():
            if path is None:
                path = f"{folder}/take.c"
                with open(path, "w", encoding="ascii") as file:
                    file.write(TAKE)
            else:
                path = f"{SOURCE}/{path}"
            built = f"{folder}/{name}.o"
            tap.run([compiler, "-std=gnu11", "-O2", "-D_GNU_SOURCE", f"-I{SOURCE}/include", f"-I{SOURCE}/src",
                     "-c", path, "-o", built])
            code[name] = functions(tap.run([objdump, "-dr", "--no-show-raw-insn", built])).get(name, [])
    return code


def places(lines, pattern):
    return [at for at, line in enumerate(lines) if re.search(pattern, line)]


def case(machine, compiler, objdump):
    def run():
        code, rules = compiled(compiler, objdump), MACHINES[machine]
        for name, lines in code.items():
            tap.equal(bool(lines), True, f"{name} has code")
            if rules["weak"]:
                tap.equal(places(lines, rules["weak"]), [], f"{name}: loads that a store may pass")
        counts = places(code["take"], rules["rmw"])
        loads = [at for at in places(code["take"], rules["load"]) if counts and at > counts[0]]
        tap.equal(bool(counts and loads), True, "take: a full read-modify-write (L1), then the load of the word (L2)")
        # L5, L7 and L8; the pages are read between the first and the others.
        stores = places(code["lend__ledger_try_reuse"], rules["store"])
        tap.equal(len(stores) >= 2, True, f"reuse: sequentially consistent stores of the word, {len(stores)} of them")
        if rules["weak"]:
            scans = places(code["lend__page_held"], rules["load"])
            tap.equal(len(scans), 2, "L6: loads of the chunk's bits and of the count")
    return run


cases = [("aarch64", case("aarch64", "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-objdump"))]
if os.uname().machine == "x86_64":
    cases += [(f"x86_64 {compiler}", case("x86_64", compiler, "objdump")) for compiler in ("gcc", "clang")]
sys.exit(tap.main([(f"orders become instructions: {name}", run) for name, run in cases]))
