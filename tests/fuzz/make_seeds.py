#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the seeds of the targets whose inputs are made of handles (wire, tree, message) from tests/golden: one of each
kind of input. Other seeds, such as what a fuzzer found, are left alone.

    make_seeds.py [TARGET]..."""

import base64
import os
import random
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
TENSORS = ["contiguous", "pinned_strided", "socket_path", "no_bytes", "attributes_user", "meta"]
TREES = ["tree_csr", "tree_wrapper", "tree_group", "tree_empty_group", "tree_meta_pair"]


def golden(name):
    with open(os.path.join(GOLDEN, f"{name}.hex"), encoding="ascii") as file:
        return bytes.fromhex("".join(line[5:] for line in file.read().split("\n\n")[0].splitlines()))


def noise(seed, n):
    return random.Random(seed).randbytes(n)


def changes(*pairs):
    """Pairs of place and what to change there, for a tree: the place takes two bytes."""
    return b"".join(struct.pack("<HB", place, value) for place, value in pairs)


def wire():
    yield "raw-tree", b"\0" + golden("tree_csr")
    for name in TENSORS:
        data = golden(name)
        yield f"raw-{name}", b"\0" + data
        yield f"text-{name}", b"\1lend1:" + base64.urlsafe_b64encode(data).rstrip(b"=")
        yield f"summed-{name}", b"\2" + data
    yield "own", b"\3\0"
    yield "own-marked", b"\3\1"
    yield "own-pin", b"\3\0" + bytes([112, 1])
    yield "own-slot", b"\3\0" + bytes([76, 1])
    yield "own-shape", b"\3\0" + bytes([136, 1, 140, 2])
    yield "own-marks", b"\3\1" + bytes([132, 0x30])
    yield "own-user", b"\3\1" + bytes([148, 2])
    yield "own-meta", b"\3\0" + bytes([64, 1, 65, 4, 68, 255, 69, 255, 70, 255, 71, 255])
    for i, flags in enumerate((0, 1 | 4, 2, 8, 16, 31, 32, 64, 127)):
        yield f"round-{i}", bytes([4, flags]) + noise(i, 1600 if flags & 64 else 400)


def tree():
    for name in TREES:
        data = golden(name)
        yield f"raw-{name}", b"\0" + data
        yield f"summed-{name}", b"\1" + data
    kinds = ("csr", "coo", "nested", "jagged", "channels", "wrapper", "group", "empty")
    for i, kind in enumerate(kinds):
        yield f"own-{kind}", bytes([2, i, 1])
    yield "own-part", bytes([2, 6, 4])
    head = (("counts", 28, 1), ("tensors", 30, 8), ("entries", 34, 8), ("exporters", 18, 1), ("group", 44, 1), ("names", 40, 8),
            ("sections", 46, 1), ("exporter", 48 + 16, 1), ("token", 48 + 48, 1), ("device", 112 + 4, 1),
            ("allocation", 112 + 8, 1), ("slot", 144 + 4, 1), ("range", 144 + 24, 8))
    for what, *pair in head:
        for i in (0, 6):
            yield f"own-{kinds[i]}-{what}", bytes([2, i, 1]) + changes(pair)
            if i == 6:
                yield f"theirs-{what}", bytes([3, 1]) + changes(pair)
    for what, *pair in (("layout", 240, 1), ("ndim", 241, 1), ("flags", 242, 16), ("components", 244, 1), ("storage", 240 + 20, 1),
                        ("user", 240 + 12, 8), ("size", 240 + 48, 1)):
        yield f"own-csr-{what}", bytes([2, 0, 1]) + changes(pair)
    yield "theirs", bytes([3, 1])
    yield "theirs-part", bytes([3, 4])
    yield "theirs-cancel", bytes([3, 8]) + changes((48 + 48, 1))
    for i, counts in enumerate((0, 0x80, 0x35, 0xb5, 0xff, 0xdb)):
        yield f"round-{i}", bytes([4, counts]) + noise(100 + i, 3000)


STREAM, GROUP, WRAP, MEMFD, DEAD, INPUT, RIGHT = 1, 2, 4, 8, 16, 32, 64
LETTERS = ("strided", "wrapper", "group", "empty")


def message():
    yield "raw", b"\0\0nonsense on the socket"
    yield "raw-stream", b"\1\0nonsense on the socket"
    yield "raw-fds", b"\0\3\0\1\2"
    yield "empty-packet", b"\0\0"
    yield "empty-packet-fds", b"\0\2\0\1"
    for i, kind in enumerate(LETTERS):
        group = GROUP if i > 1 else 0
        for name, who in (("own", 0), ("dead", DEAD)):
            yield f"{name}-{kind}", bytes([WRAP | RIGHT | who | group, i, 0])
            yield f"{name}-{kind}-stream", bytes([WRAP | RIGHT | STREAM | who | group, i, 0])
            yield f"{name}-{kind}-memfd", bytes([WRAP | RIGHT | MEMFD | who | group, i, 0, 0])
        yield f"dead-{kind}-changed", bytes([WRAP | RIGHT | DEAD | group, i, 1]) + changes((144, 1))
        yield f"dead-{kind}-none", bytes([WRAP | DEAD | group, i, 0, 0, 0])
        yield f"dead-{kind}-other", bytes([WRAP | DEAD | group, i, 0, 2, 0, 1, 1, 0, 0, 2, 2, 0, 0])
        yield f"wrong-kind-{kind}", bytes([WRAP | RIGHT | (0 if group else GROUP), i, 0])
    for i, seals in enumerate((1, 2, 4, 8, 12, 15, 16)):
        yield f"memfd-{i}", bytes([WRAP | RIGHT | MEMFD | GROUP, 2, seals, 0])
    for lie in range(1, 8):
        yield f"lie-{lie}", bytes([WRAP | MEMFD | GROUP, 2, 0, lie, 1, 1, 0, 0])
    for name in TENSORS + TREES:
        yield f"wrapped-{name}", bytes([WRAP | INPUT | RIGHT | (GROUP if "group" in name else 0), 0]) + golden(name)
        yield f"memfd-{name}", bytes([WRAP | INPUT | RIGHT | MEMFD, 0, 0]) + golden(name)


def write(target, seeds):
    folder = os.path.join(HERE, "seeds", target)
    os.makedirs(folder, exist_ok=True)
    n = 0
    for name, data in seeds:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
        n += 1
    print(f"{target}: {n} seeds")


TARGETS = {"wire": wire, "tree": tree, "message": message}
for picked in sys.argv[1:] or TARGETS:
    write(picked, TARGETS[picked]())
