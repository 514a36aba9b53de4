#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The public structs and enumerators are exactly what tests/abi/layout.txt lists, which people review.

    test_layout.py CC...             tests, with this C compiler
    test_layout.py --update CC...    writes layout.txt anew

The members are taken from the headers, so that none can be forgotten; what the compiler makes of them is printed by a
program that it builds. x86-64 and aarch64 agree."""

import os
import re
import subprocess
import sys
import tempfile

import tap

UPDATE = sys.argv[1] == "--update"
COMPILER = sys.argv[2:] if UPDATE else sys.argv[1:]
FOLDER = os.path.dirname(os.path.abspath(__file__))
REVIEWED = f"{FOLDER}/layout.txt"
INCLUDE = os.path.normpath(FOLDER + "/../../include")
HEADERS = sorted(name for name in os.listdir(f"{INCLUDE}/lend") if name != "dlpack.h")  # DLPack's structs are DLPack's

PROGRAM = """
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#define MEMBER(tag, member) \\
    printf("  %zu %zu %s\\n", offsetof(struct tag, member), sizeof(((struct tag *)0)->member), #member)
#define BITS(tag, member) \\
    do { struct tag s; memset(&s, 0, sizeof s); s.member--; bits(#member, &s, sizeof s); } while (0)
static void bits(const char *name, const void *object, size_t bytes) {
    size_t first = 0, n = 0;
    for (size_t i = 0; i < bytes * 8; i++)
        if (((const unsigned char *)object)[i / 8] >> i % 8 & 1 && !n++) first = i;
    printf("  %zu.%zu %zu bit %s\\n", first / 8, first % 8, n, name);
}
int main(void) {
"""


def text(name):
    with open(f"{INCLUDE}/lend/{name}", encoding="ascii") as file:
        return re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)


def members(body):
    """(name, is a bit-field) of each member of a struct's body."""
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        for declarator in declaration.split(","):
            name, field = re.fullmatch(r".*?(\w+)\s*(?:\[\w+\])?\s*(:\s*\d+)?", declarator.strip(), re.DOTALL).groups()
            yield name, bool(field)


def program():
    lines = [f"#include <lend/{name}>\n" for name in HEADERS] + [PROGRAM]
    for header in HEADERS:
        for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text(header), re.DOTALL | re.MULTILINE):
            lines.append(f'    printf("struct {name} %zu\\n", sizeof(struct {name}));\n')
            lines += [f"    {'BITS' if is_bits else 'MEMBER'}({name}, {member});\n" for member, is_bits in members(body)]
        for name, body in re.findall(r"^enum (\w+) \{(.*?)\};", text(header), re.DOTALL | re.MULTILINE):
            lines.append(f'    puts("enum {name}");\n')
            lines += [f'    printf("  {value} %lld\\n", (long long){value});\n'
                      for value in re.findall(r"\b(LEND_\w+)\s*=", body)]
    return "".join(lines) + "    return 0;\n}\n"


def layout():
    with tempfile.TemporaryDirectory(prefix="lend-layout-") as folder:
        with open(f"{folder}/layout.c", "w", encoding="ascii") as file:
            file.write(program())
        tap.run([*COMPILER, "-std=c99", "-I", INCLUDE, "-o", f"{folder}/layout", f"{folder}/layout.c"])
        return subprocess.run([f"{folder}/layout"], check=True, stdout=subprocess.PIPE, text=True).stdout


def groups(listing):
    """{first line of a group: its lines}"""
    found = {}
    for line in listing.splitlines():
        if line and not line.startswith("#"):
            group = line if not line.startswith("  ") else group
            found.setdefault(group, []).append(line)
    return found


def layout_is_reviewed():
    with open(REVIEWED, encoding="ascii") as file:
        reviewed = groups(file.read())
    present = groups(layout())
    problems = [f"{'new' if name not in reviewed else 'gone' if name not in present else 'changed'}: {name}"
                for name in sorted({*reviewed, *present}) if reviewed.get(name) != present.get(name)]
    if problems:
        raise tap.Failure("not as in layout.txt (make abi, then review):\n" + "\n".join(problems))


def every_struct_is_listed():
    """No struct or enum of the headers is written in a way that the listing would miss."""
    headers = "".join(text(name) for name in HEADERS)
    tap.equal(len(re.findall(r"\b(?:struct|union|enum)\s*\w*\s*\{", headers)), len(groups(layout())), "the number of groups")


if UPDATE:
    with open(REVIEWED, "w", encoding="ascii") as out:
        out.write("# Public structs: bytes; of each member the offset and bytes, or for bit-fields byte.bit and bits. Public\n"
                  "# enums: values. Written by test_layout.py --update (make abi); each change is reviewed.\n")
        out.write(layout())
    sys.exit(0)
sys.exit(tap.main([
    ("structs and enumerators are those of the reviewed list", layout_is_reviewed),
    ("the list has every struct and enum of the headers", every_struct_is_listed),
]))
