#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the documents say is what is there: links, tests, labels, offsets, prototypes, variables, targets.

    test_docs.py SOURCE"""

import glob
import os
import re
import shutil
import struct
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
            ("slot_of_pin", "docs/wire.md", "### Slot of PIN"),
            ("reply", "docs/wire.md", "### Reply"),
            ("message", "docs/wire.md", "## Message of lend_send"),
            ("item", "docs/wire.md", "### Item")):
        tap.equal(rows(page, first), golden[group], f"the table of {group} in {page}")
    for page, name in (("docs/shm-layout.md", "layout"), ("docs/wire.md", "control")):
        text = read(page).replace(",", "")
        for line in re.findall(r"^(?:bytes|part) .*", read(f"tests/golden/{name}.txt"), re.MULTILINE):
            for number in re.findall(r"\d+", line):
                if not re.search(rf"\b{number}\b", text):
                    raise tap.Failure(f"{page} does not say {number} ({line})")


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def golden_bytes(name):
    lines = read(f"tests/golden/{name}.hex").split("\n\n")[0].splitlines()
    return bytes.fromhex("".join(line[5:] for line in lines))


def table_of(first, begin, end):
    """The table of wire.md behind `first`; its members follow one another without gaps from `begin` to `end`."""
    table = rows("docs/wire.md", first)
    covered = sorted(table.values())
    tap.equal([offset for offset, _ in covered] + [end], [begin] + [offset + size for offset, size in covered],
              f"gaps in the table behind {first!r}")
    return table


def members(data, at, table):
    return {member: int.from_bytes(data[at + offset:at + offset + size], "little") for member, (offset, size) in table.items()}


def check_first_16(value, data, form):
    expected = dict(magic=int.from_bytes(b"LEND", "little"), major=0, minor=0, form=form, total=len(data),
                    checksum=crc32c(data[:12] + data[16:]))
    tap.equal({member: value[member] for member in expected}, expected, "the first 16 bytes")


def handle_by_the_page():
    """A golden handle read by docs/wire.md alone."""
    data = golden_bytes("contiguous")
    value = members(data, 0, table_of("## Handle", 0, 136))
    check_first_16(value, data, 0)
    expected = dict(start_ns=0x1122334455667788, uid=1000, pid=4321, device_type=1, allocation=3,
                    allocation_gen=2, slot=7, slot_gen=9, allocation_bytes=2 << 20, storage_offset=4096, storage_bytes=24,
                    pin_token=0, offset_bits=0, code=2, bits=32, lanes=1, flags=4, ndim=2, n_sections=0)
    tap.equal({member: value[member] for member in expected}, expected, "the fields")
    tap.equal([data[136 + 4 * i] for i in range(2)], [2, 3], "the shape")


def user_by_the_page():
    """The section of user bytes, behind that of a path."""
    data = golden_bytes("attributes_user")
    value = members(data, 0, rows("docs/wire.md", "## Handle"))
    tap.equal((value["flags"], value["n_sections"]), (4 | 16 | 32 | 64 | 128 | 256 | 512 | 1024, 2), "flags and sections")
    at = 136 + 8
    tap.equal((data[at:at + 8], data[at + 8:at + 8 + 13]), (bytes.fromhex("0100010039000000"), b"/run/user/100"), "the path")
    at += 8 + 64
    tap.equal(data[at:], bytes.fromhex("0200000012000000") + b"rhtp" + b'{"tp_rank": 3}' + bytes(6), "the user attribute")


class Reader:
    """Reads a tree by the tables of docs/wire.md."""

    def __init__(self, data):
        self.data = data
        self.at = 48
        self.head = members(data, 0, table_of("#### Head", 16, 48))
        self.tensor = table_of("#### Tensor", 0, 32)
        self.more = table_of("With components, in place of", 24, 48)
        check_first_16(members(data, 0, {member: place for member, place in rows("docs/wire.md", "## Handle").items()
                                         if place[0] < 16}), data, 1)

    def take(self, n):
        """n bytes, and the zeros behind them."""
        taken, padding = self.data[self.at:self.at + n], self.data[self.at + n:self.at + -(-n // 8) * 8]
        tap.equal((len(taken), sum(padding)), (n, 0), f"{n} bytes at {self.at}")
        self.at += -(-n // 8) * 8
        return taken

    def rows(self, first, size, n):
        table = table_of(first, 0, size)
        return [members(self.take(size), 0, table) for _ in range(n)]

    def node(self):
        value = members(self.data, self.at, self.tensor)
        has_parts = value["layout"] != 0
        if has_parts:
            value.update(members(self.data, self.at, self.more))
        self.at += 48 if has_parts else 32
        n, width = value["ndim"] * (1 if value["flags"] & 4 else 2), 8 if value["flags"] & 8 else 4
        dims = self.take(n * width)
        value["dims"] = [int.from_bytes(dims[i * width:(i + 1) * width], "little", signed=True) for i in range(n)]
        value["user"] = self.take(value["user_bytes"])
        value["parts"] = [self.node() for _ in range(value["n_components"])]
        return value

    def read(self):
        tree = {"exporters": self.rows("#### Exporter", 64, self.head["n_exporters"]),
                "allocations": self.rows("#### Allocation", 32, self.head["n_allocations"]),
                "storages": self.rows("#### Storage", 32, self.head["n_storages"])}
        begin = self.at
        tree["entries"] = [self.node() for _ in range(self.head["n_entries"])]
        tap.equal(self.at - begin, self.head["tensors_bytes"], "the bytes of the tensors")
        tree["paths"] = self.take(sum(exporter["path_bytes"] for exporter in tree["exporters"]))
        tree["names"] = self.take(self.head["names_bytes"]).split(b"\0")[:-1]
        tap.equal((self.at, self.head["n_sections"]), (len(self.data), 0), "what is left")
        return tree


def picked(values, *names):
    return [tuple(value[name] for name in names) for value in values]


def tree_by_the_page():
    """The golden trees read by docs/wire.md alone."""
    path = b"/run/user/1000/lend-1000-e0e1e2e3e4e5e6e7e8e9eaebecedeeef"
    none = 0xffffffff
    reader = Reader(golden_bytes("tree_group"))
    tree = reader.read()
    tap.equal((reader.head["n_tensors"], reader.head["flags"]), (4, 1), "the head")
    tap.equal(picked(tree["exporters"], "start_ns", "uid", "pid", "pin_token", "path_bytes"),
              [(0x1122334455667788, 1000, 4321, 0xfedcba9876543210, len(path)), (5, 1001, 99, 1, 0)], "exporters")
    tap.equal(picked(tree["allocations"], "exporter", "device_type", "index", "gen", "allocation_bytes"),
              [(0, 1, 3, 2, 2 << 20), (1, 1, 0, 1, 1 << 40), (1, 1, none, 0, 0)], "allocations")
    tap.equal(picked(tree["storages"], "allocation", "slot", "slot_gen", "storage_offset", "storage_bytes"),
              [(0, 7, 9, 4096, 24), (1, 0xabcdef, 0x0123456789abcdef, 1 << 32, 1 << 39), (2, 3, 4, 0, 0)], "storages")
    tap.equal(picked(tree["entries"], "layout", "flags", "storage", "offset_bits", "code", "bits", "lanes", "dims", "user_tag", "user"),
              [(0, 4 | 16 | 64, 0, 0, 2, 32, 1, [2, 3], 1, bytes(range(1, 10))), (0, 4, 0, 0, 2, 32, 1, [6], 0, b""),
               (0, 1 | 8, 1, 8 * ((1 << 38) + 16), 2, 32, 1, [2, 5, 1 << 33, -7], 0, b""), (0, 4 | 2, 2, 0, 0, 8, 1, [0], 0, b"")], "entries")
    tap.equal((tree["paths"], tree["names"]), (path, [b"layers.0.weight", b"", "größe".encode(), b"\x1b[2J"]), "paths and names")

    tree = Reader(golden_bytes("tree_wrapper")).read()
    whole = tree["entries"][0]
    tap.equal(picked([whole], "layout", "storage", "code", "bits", "user_tag", "user"), [(10, none, 2, 64, 0xabcd, b"tag")], "the wrapper")
    tap.equal(picked(whole["parts"], "layout", "flags", "n_components", "dim", "scale", "zero_point", "dims"),
              [(1, 2048 | 4, 2, 0, 0, 0, [3, 4]), (7, 4, 2, 1, 0, 0, [2, -1, 4]),
               (8, 4, 1, 0, int.from_bytes(struct.pack("<d", 0.125), "little"), 2**64 - 3, [6]), (9, 4, 3, 1, 0, 0, [2, 3])], "its parts")
    tap.equal([picked(part["parts"], "layout", "code", "bits", "dims") for part in whole["parts"]],
              [[(0, 0, 64, [2, 3]), (0, 2, 32, [3])], [(0, 2, 32, [5, 4]), (0, 0, 64, [3])], [(0, 0, 8, [6])],
               [(0, 0, 8, [2, 3]), (0, 2, 32, [3]), (0, 0, 64, [3])]], "their parts")

    tree = Reader(golden_bytes("tree_csr")).read()
    tap.equal(picked(tree["entries"], "layout", "flags", "dims"), [(2, 4 | 16, [4, 5])], "the CSR tensor")
    tap.equal(picked(tree["entries"][0]["parts"], "storage", "dims"), [(0, [5]), (1, [3]), (2, [3])], "its components")
    tree = Reader(golden_bytes("tree_meta_pair")).read()
    tap.equal(picked(tree["allocations"], "device_type", "index"), [(1024, none)], "no allocation")
    tap.equal(picked(tree["storages"], "slot", "slot_gen", "storage_bytes"), [(0, 17, 4096)], "the meta storage")
    tap.equal(picked(tree["entries"], "storage", "offset_bits"), [(0, 0), (0, 32 * 512)], "its views")
    empty = Reader(golden_bytes("tree_empty_group"))
    tap.equal((empty.read()["entries"], len(empty.data)), ([], 48), "the empty group")


def message_by_the_page():
    """The golden messages read by docs/wire.md alone."""
    header, item = table_of("## Message of lend_send", 0, 16), table_of("### Item", 0, 8)
    for name, handle, items in (("message", b"a handle", [(1, 0), (2, 5)]), ("message_long", None, [(1, 0), (2, 5), (3, 0)])):
        data = golden_bytes(name)
        value = members(data, 0, header)
        tap.equal((value["magic"].to_bytes(4, "little"), value["n_fds"], value["reserved"]), (b"LMSG", len(items), 0), "the header")
        tap.equal(value["handle_bytes"], len(handle) if handle else 2048 - 31, "the length")
        tap.equal(picked([members(data, 16 + 8 * i, item) for i in range(len(items))], "kind", "index"), items, "the items")
        tap.equal(data[16 + 8 * len(items):], handle or b"", "what follows")


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
    ("a user attribute is what wire.md says", user_by_the_page),
    ("a tree is what wire.md says", tree_by_the_page),
    ("a message is what wire.md says", message_by_the_page),
    ("man pages show the prototypes of the headers", prototypes),
    ("every call's comment has every line", calls),
    ("man pages are listed and well formed", man_pages),
    ("environment.md names every variable", environment),
    ("make targets exist", targets),
    ("CONTRIBUTING.md names every suite", suites),
    ("the version is in the change log", versions),
    ("decisions are listed and complete", decisions),
]))
