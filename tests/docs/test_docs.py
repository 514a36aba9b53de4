#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the documents say is what is there: links, tests, labels, offsets, prototypes, variables, targets.

    test_docs.py SOURCE"""

import glob
import os
import re
import shutil
import subprocess
import sys

import tap

SOURCE = sys.argv[1]


def read(name):
    with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
        return file.read()


def names(*patterns):
    found = [path for pattern in patterns for path in glob.glob(os.path.join(SOURCE, pattern), recursive=True)]
    return sorted(os.path.relpath(path, SOURCE) for path in found)


def none(problems, what):
    if problems:
        raise tap.Failure(f"{what}:\n" + "\n".join(sorted(set(problems))))


def links():
    problems = []
    for page in names("*.md", "docs/**/*.md", "models/*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", read(page)):
            if not re.match(r"[a-z]+:", target) and not os.path.exists(os.path.join(SOURCE, os.path.dirname(page), target)):
                problems.append(f"{page}: {target}")
    none(problems, "links to nowhere")


def tests_named():
    """`SUITE/FILE: NAME` names a test of tests/SUITE/FILE.c or FILE.py."""
    problems, n = [], 0
    for page in ("docs/security.md", "docs/failure-modes.md", "docs/kinds.md"):
        for path, test in re.findall(r"`(\w+/test_\w+): (\w+)`", read(page)):
            n += 1
            files = names(f"tests/{path}.c", f"tests/{path}.py")
            if not any(re.search(rf"\bLEND_TEST\w*\({test}\b|\bdef {test}\(", read(file)) for file in files):
                problems.append(f"{page}: {path}: {test}")
    none(problems, "tests that do not exist")
    if not n:
        raise tap.Failure("no test is named")


def security_lines_are_tested():
    lines = [line for line in read("docs/security.md").splitlines() if line.startswith("| ") and not line.startswith(("| who", "|--"))]
    none([line for line in lines if not re.search(r"`\w+/test_\w+: \w+`", line)], "lines without a test")


KINDS = ("kinds", "attributes", "layouts", "meta", "private", "refusals", "groups", "whole", "trees")


def kinds_are_tested():
    """Each row of kinds.md names its test, and each test of a kind has its row."""
    text = read("docs/kinds.md")
    lines = [line for line in text.splitlines() if line.startswith("| ") and line.split(" | ")[-1] != "test |"]
    none([line for line in lines if not re.search(r"`\w+/test_\w+: \w+` \|$", line)], "rows without a test")
    there = {f"proc/test_{name}: {test}" for name in KINDS
             for test in re.findall(r"\bLEND_TEST\w*\((\w+)", read(f"tests/proc/test_{name}.c"))}
    none(there - set(re.findall(r"`(proc/test_\w+: \w+)`", text)), "tests of kinds that docs/kinds.md has no row for")


def literals(text):
    """All string literals of a source, neighbours joined, one a line."""
    joined = re.findall(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', text)
    return "\n".join(re.sub(r'"\s*"', "", part) for part in joined)


def kinds_say_the_words():
    """The words that a row of kinds.md quotes are in the library, and the row's tests look for them."""
    library = "\n".join(literals(read(name)) for name in names("src/**/*.c"))
    problems = []
    for line in read("docs/kinds.md").splitlines():
        tests = re.findall(r"`(\w+/test_\w+): \w+`", line)
        for words in re.findall(r'"([^"]+)"', line) if tests else ():
            if words not in library:
                problems.append(f"no sentence of the library has: {words}")
            if not any(words in literals(read(f"tests/{test}.c")) for test in tests):
                problems.append(f"{', '.join(tests)}: does not look for: {words}")
    none(problems, "words of docs/kinds.md")


def labels():
    """Every LEND_POINT of the protocol and of growth stands in failure-modes.md, and no other."""
    in_source = {label for name in names("src/**/*.[ch]") for label in re.findall(r'LEND_POINT\("([^"]+)"\)', read(name))}
    in_page = set(re.findall(r"`([A-Z]\d+(?:\.[a-z-]+)?)`", read("docs/failure-modes.md")))
    none(in_source - in_page, "labels that docs/failure-modes.md does not explain")
    none(in_page - in_source, "labels in docs/failure-modes.md that no source has")


def rows(page, first):
    """The {member: (offset, bytes)} of the table that follows the line beginning with `first`."""
    text = read(page)
    at = text.index(first)
    table = re.search(r"(?:^\|.*\n)+", text[at + len(first):], re.MULTILINE)[0]
    found = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", table, re.MULTILINE)
    return {member: (int(offset), int(size)) for offset, size, member in found}


def offsets():
    golden = {}
    for line in (read("tests/golden/layout.txt") + read("tests/golden/control.txt")).splitlines():
        word = line.split()
        if len(word) == 4 and word[1].isdigit() and word[2].isdigit():
            golden.setdefault(word[0], {})[word[3]] = (int(word[1]), int(word[2]))
    for group, page, first in (
            ("table", "docs/shm-layout.md", "Header, `struct lend_shm_table`"),
            ("slot", "docs/shm-layout.md", "Slot, `struct lend_shm_slot`"),
            ("allocation", "docs/shm-layout.md", "Allocation, `struct lend_shm_allocation`"),
            ("page", "docs/shm-layout.md", "Header, `struct lend_shm_page`"),
            ("cell", "docs/shm-layout.md", "Cell, `struct lend_shm_cell`"),
            ("request", "docs/wire.md", "### Request"),
            ("reply", "docs/wire.md", "### Reply")):
        tap.equal(rows(page, first), golden[group], f"the table of {group} in {page}")
    text = read("docs/shm-layout.md")
    for line in re.findall(r"^(?:bytes|part) .*", read("tests/golden/layout.txt"), re.MULTILINE):
        for number in re.findall(r"\d+", line):
            if number not in text.replace(",", ""):
                raise tap.Failure(f"docs/shm-layout.md does not say {number} ({line})")


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def handle_by_the_page():
    """A golden handle read by docs/wire.md alone."""
    lines = read("tests/golden/contiguous.hex").split("\n\n")[0].splitlines()
    data = bytes.fromhex("".join(line[5:] for line in lines))
    table = rows("docs/wire.md", "## Handle")
    value = {member: int.from_bytes(data[offset:offset + size], "little") for member, (offset, size) in table.items()}
    tap.equal(value["magic"].to_bytes(4, "little"), b"LEND", "magic")
    tap.equal(value["total"], len(data), "total")
    tap.equal(value["checksum"], crc32c(data[:12] + data[16:]), "checksum")
    expected = dict(major=0, minor=0, start_ns=0x1122334455667788, uid=1000, pid=4321, device_type=1, allocation=3,
                    allocation_gen=2, slot=7, slot_gen=9, allocation_bytes=2 << 20, storage_offset=4096, storage_bytes=24,
                    pin_token=0, offset_bits=0, code=2, bits=32, lanes=1, flags=4, ndim=2, n_sections=0)
    tap.equal({member: value[member] for member in expected}, expected, "the fields")
    tap.equal([data[136 + 4 * i] for i in range(2)], [2, 3], "the shape")
    covered = sorted((offset, size) for offset, size in table.values())
    tap.equal([offset for offset, _ in covered] + [136], [0] + [offset + size for offset, size in covered], "gaps in the page's table")


def prototypes():
    """What man pages show under SYNOPSIS is in the headers."""
    headers = re.sub(r"\s+", "", "".join(read(name) for name in names("include/lend/*.h")))
    problems = []
    for page in names("man/*.3.scd"):
        text = read(page)
        synopsis = re.search(r"# SYNOPSIS\n(.*?)\n# ", text, re.DOTALL)[1]
        for prototype in re.findall(r"^\*[^#].*?;\*$", synopsis, re.DOTALL | re.MULTILINE):
            plain = re.sub(r"(?<!\\)\*", "", prototype)
            plain = re.sub(r"(?<![A-Za-z0-9])_(\w+?)_(?![A-Za-z0-9])", r"\1", plain)
            plain = re.sub(r"\s+", "", plain.replace("\\", ""))
            if "LEND_API" + plain not in headers:
                problems.append(f"{page}: {plain}")
        first = re.search(r"# NAME\n\n(.*?) - ", text, re.DOTALL)[1]
        problems += [f"{page}: {name}" for name in re.split(r",\s+", first) if name + "(" not in headers]
    none(problems, "calls that no header declares so")


def calls():
    """The comment right before each public call has all lines of style, or says that another call's are its own."""
    told, problems = {}, []
    for header in names("include/lend/*.h"):
        for comment, call in re.findall(r"(?:^/\*((?:(?!\*/).)*)\*/\n)?^LEND_API\b[^;]*?\b(lend_\w+)\([^;]*;", read(header),
                                        re.DOTALL | re.MULTILINE):
            told[call] = (header, comment)
    labels_of_style = ("Return:", "Threads:", "Crash:", "Since:", "See:")
    missing = {call: [label for label in labels_of_style if label not in comment] for call, (_, comment) in told.items()}
    for call, (header, comment) in told.items():
        like = re.match(r"\s*As (lend_\w+)", comment)
        if missing[call] and not (like and missing.get(like[1]) == []):
            problems.append(f"{header}: {call}: {' '.join(missing[call])}")
    none(problems, "calls whose comments lack lines")
    exported = {line.split("@")[0] for name in ("liblend", "liblend-file") for line in read(f"tests/abi/{name}.txt").splitlines()
                if line and not line.startswith("#")}
    tap.equal(sorted(told), sorted(exported), "the calls that were looked at")


def man_pages():
    listed = re.findall(r"'(lend\w*\.\d)'", read("man/meson.build"))
    tap.equal(sorted(f"man/{page}.scd" for page in listed), names("man/*.scd"), "the pages in man/meson.build")
    if not shutil.which("scdoc"):
        raise tap.Skip("no scdoc here")
    for page in names("man/*.scd"):
        done = subprocess.run(["scdoc"], input=read(page).encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        tap.equal(done.returncode, 0, f"what scdoc says to {page}: {done.stdout.decode()}: exit status")


def environment():
    used = {name for path in names("src/**/*.c", "cli/*.c", "tests/**/*.[ch]")
            for name in re.findall(r'getenv\("((?:LEND_|TERM|NO_COLOR)\w*)"\)', read(path))}
    told = set(re.findall(r"`([A-Z_]{4,})`", read("docs/environment.md")))
    none(used - told, "variables that docs/environment.md does not name")


def suites():
    """CONTRIBUTING.md names every suite."""
    told = set(re.findall(r"`(\w+)`", next(line for line in read("CONTRIBUTING.md").splitlines() if line.startswith("| `tests/SUITE/`"))))
    none({os.path.dirname(name)[len("tests/"):] for name in names("tests/*/meson.build")} - told, "suites that CONTRIBUTING.md lacks")


def targets():
    makefile = read("Makefile")
    wanted = {name for page in ("README.md", "CONTRIBUTING.md") for line in re.findall(r"\bmake ((?:[a-z]+ ?)+)", read(page))
              for name in line.split()[:1]}
    none([name for name in wanted if not re.search(rf"^{name}:", makefile, re.MULTILINE)], "targets that the Makefile lacks")


def versions():
    version = re.search(r'LEND_VERSION_STRING "(.*)"', read("include/lend/version.h"))[1]
    if not re.search(rf"^## {re.escape(version)}\b", read("CHANGELOG.md"), re.MULTILINE):
        raise tap.Failure(f"CHANGELOG.md has no section {version}")
    if ".".join(version.split(".")[:2]) + ".x" not in read("SECURITY.md"):
        raise tap.Failure(f"SECURITY.md does not name {version}")


def decisions():
    index = re.findall(r"\((\d{4}-[\w-]+\.md)\)", read("docs/decisions/README.md"))
    tap.equal([f"docs/decisions/{name}" for name in index], names("docs/decisions/[0-9]*.md"), "the index of decisions")
    for name in index:
        text = read(f"docs/decisions/{name}")
        tap.equal(re.findall(r"^## (.*)", text, re.MULTILINE), ["Context", "Decision", "Consequences"], f"the parts of {name}")


sys.exit(tap.main([
    ("links lead somewhere", links),
    ("tests that pages name exist", tests_named),
    ("every line of security.md names its test", security_lines_are_tested),
    ("every row of kinds.md names its test, and every test of a kind has a row", kinds_are_tested),
    ("the words in kinds.md are those of the library and its tests", kinds_say_the_words),
    ("failure-modes.md has every label", labels),
    ("offsets in the pages are those of the code", offsets),
    ("a handle is what wire.md says", handle_by_the_page),
    ("man pages show the prototypes of the headers", prototypes),
    ("every call's comment has every line", calls),
    ("man pages are listed and well formed", man_pages),
    ("environment.md names every variable", environment),
    ("make targets exist", targets),
    ("CONTRIBUTING.md names every suite", suites),
    ("the version is in the change log", versions),
    ("decisions are listed and complete", decisions),
]))
