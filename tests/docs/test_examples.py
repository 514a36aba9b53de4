#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The README's programs and the examples, built as their own comments say and run as separate processes.

    test_examples.py SOURCE BUILD

The library is installed into an empty folder, which pkg-config is told about; nothing else of the build is used."""

import glob
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import tty

import tap

SOURCE, BUILD = sys.argv[1:]
STAGE = tempfile.mkdtemp(prefix="lend-docs-")
WORK = os.path.join(STAGE, "work")
ENV = dict(os.environ)


def read(name):
    with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
        return file.read()


def install():
    options = json.loads(tap.run(["meson", "introspect", "--buildoptions", BUILD]))
    if next(o["value"] for o in options if o["name"] == "b_sanitize") != "none":
        raise tap.Skip("a build with a sanitizer")
    tap.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", STAGE])
    config = glob.glob(f"{STAGE}/**/liblend.pc", recursive=True)[0]
    library = glob.glob(f"{STAGE}/**/liblend.so.0", recursive=True)[0]
    ENV.update(PKG_CONFIG_LIBDIR=os.path.dirname(config), PKG_CONFIG_SYSROOT_DIR=STAGE,
               LD_LIBRARY_PATH=os.path.dirname(library))


def needs_stage():
    if "PKG_CONFIG_SYSROOT_DIR" not in ENV:
        raise tap.Skip("the library was not installed")


def build(text, name):
    """Runs the command line that builds `name` in the text: it ends in $(pkg-config ... liblend)."""
    command = re.search(rf"^[ */]*(\S*\b(?:cc|c\+\+|rustc) .*-o {name} .*liblend\))$", text, re.MULTILINE)
    if not command:
        raise tap.Failure(f"no command that builds {name}")
    if not shutil.which(command[1].split()[0]):
        raise tap.Skip(f"no {command[1].split()[0]} here")
    done = subprocess.run(["sh", "-c", command[1]], cwd=WORK, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    tap.equal((done.returncode, done.stdout), (0, ""), f"what `{command[1]}` says")


def copied(*names):
    needs_stage()
    os.makedirs(WORK, exist_ok=True)
    for name in names:
        shutil.copy(os.path.join(SOURCE, name), WORK)


class Lender:
    """A program that prints a handle first and ends when its standard input does. Its output is a terminal, as a
    reader's is: lines come at once."""

    def __init__(self, program):
        self.terminal, its_side = pty.openpty()
        tty.setraw(its_side)
        self.process = subprocess.Popen([f"./{program}"], cwd=WORK, env=ENV, stdin=subprocess.PIPE, stdout=its_side)
        os.close(its_side)
        self.handle = self.read_until(b"\n").decode().strip()
        if not self.handle.startswith("lend1:"):
            self.process.kill()
            raise tap.Failure(f"{program} prints {self.handle!r} and no handle")

    def read_until(self, end):
        """What it prints up to `end`, or (None) until it ends."""
        output = b""
        while not (end and output.endswith(end)):
            if not select.select([self.terminal], [], [], 30)[0]:
                self.process.kill()
                raise tap.Failure(f"nothing more within 30 s after {output!r}")
            try:
                output += os.read(self.terminal, 1)
            except OSError:  # EIO: nobody has the other side open any more
                break
        return output

    def rest(self):
        self.process.stdin.close()
        output = self.read_until(None).decode()
        os.close(self.terminal)
        tap.equal(self.process.wait(timeout=30), 0, "the lender's exit status")
        return output


def borrow(*words):
    """Status and the first word of the one line that the borrower says, if any."""
    done = subprocess.run(["./borrower", *words], cwd=WORK, env=ENV, stdout=subprocess.PIPE, text=True, check=False)
    if done.stdout.count("\n") != (done.returncode != 0):
        raise tap.Failure(f"the borrower ends with {done.returncode} and says {done.stdout!r}")
    return done.returncode, re.match(r"\S* ?", done.stdout)[0]


def readme():
    needs_stage()
    os.makedirs(WORK, exist_ok=True)
    text = read("README.md")
    blocks = dict(re.findall(r"^`(\w+\.c)` [^\n]*:\n\n```c\n(.*?)```", text, re.DOTALL | re.MULTILINE))
    tap.equal(sorted(blocks), ["borrower.c", "lender.c"], "the README's programs")
    for name, body in blocks.items():
        if body.count("\n") > 20:
            raise tap.Failure(f"{name} has {body.count(chr(10))} lines and the heading says twenty")
        with open(os.path.join(WORK, name), "w", encoding="utf-8") as file:
            file.write(body)
    for name in ("lender", "borrower"):
        build(text, name)
    lender = Lender("lender")
    for words, status, said in (([], 2, "usage: "), (["lend1:"], 2, "usage: "), ([lender.handle[:-1]], 2, "usage: "),
                                ([lender.handle], 0, "")):
        tap.equal(borrow(*words), (status, said), f"status and beginning of the borrower's answer to {words}")
    tap.equal(lender.rest(), "x[5] is now 42\n", "what the lender prints at its end")
    tap.equal(borrow(lender.handle)[0], 1, "the borrower's status when the lender is gone")


def c_example():
    copied("examples/c/lender.c", "examples/c/borrower.c")
    for name in ("lender", "borrower"):
        build(read(f"examples/c/{name}.c"), name)
    lender = Lender("lender")
    tap.equal(tap.run(["./borrower", lender.handle], cwd=WORK, env=ENV), "borrowed 2 elements, last column times 10\n",
              "what the borrower prints")
    tap.equal(lender.rest(), "x[1][2] is 50\n", "what the lender prints at its end")


STATE_DICT = """parameter embed.weight: 1 2 3 4
parameter head.weight: 1 2 3 4, tied to the last
buffer norm.mean: 0.5 0.25
parameter sparse.weight: 7 8 9
buffer norm.mean: 0.5 0.25
parameter sparse.weight: 7 8 9
"""


def c_state_dict():
    copied("examples/c/state_dict.c")
    build(read("examples/c/state_dict.c"), "state_dict")
    trainer, idle = Lender("state_dict"), Lender("state_dict")
    tap.equal(tap.run(["./state_dict", trainer.handle], cwd=WORK, env=ENV), STATE_DICT, "what the server prints")
    late = subprocess.run(["./state_dict", trainer.handle], cwd=WORK, env=ENV, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    tap.equal((late.returncode, late.stdout[:21]), (1, "the storage is gone: "), "what a second server says")
    tap.equal((trainer.rest(), idle.rest()), ("", ""), "what a trainer prints at its end, with a server and without")


def cpp_example():
    copied("examples/cpp/lend.hpp", "examples/cpp/share.cpp", "examples/cpp/group.cpp")
    for name, printed in (("share", "x[0] is 42\n"), ("group", "sparse[0][0] is 14\n")):
        build(read(f"examples/cpp/{name}.cpp"), name)
        tap.equal(tap.run([f"./{name}"], cwd=WORK, env=ENV), printed, f"what {name} prints")


def members(text, start, pattern):
    """The names of a struct's members in order; bits are one word, flags."""
    body = text[text.index(start):]
    found = re.findall(pattern, re.sub(r"/\*.*?\*/", "", body[:body.index("\n}")], flags=re.DOTALL), re.MULTILINE)
    return [name for i, name in enumerate(found) if name != "flags" or found[i - 1] != "flags"]


def rust_structs():
    """Rust cannot see the headers, and a struct that has grown since is read wrong, not refused."""
    rust, bits = read("examples/rust/borrow.rs"), r"uint32_t \w+ : 1;"
    for name, header, struct in (("Info", "tensor", "lend_tensor_info"), ("Error", "error", "lend_error")):
        declared = re.sub(bits, "uint32_t flags;", read(f"include/lend/{header}.h"))
        ours = members(rust, f"struct {name} {{", r"^    (\w+):")
        declarators = members(declared, f"struct {struct} {{", r"(\w+)(?:\[\w+\])?(?=[,;])")
        tap.equal(ours, declarators, f"the members of {name}")


def rust_example():
    copied("examples/rust/borrow.rs", "examples/c/lender.c")
    build(read("examples/rust/borrow.rs"), "borrow")
    build(read("examples/c/lender.c"), "lender")
    lender = Lender("lender")
    tap.equal(tap.run(["./borrow", lender.handle], cwd=WORK, env=ENV), "sum 15, negated into the last element\n"
              "weight in a group: the same memory, true\n", "what the borrower prints")
    tap.equal(lender.rest(), "x[1][2] is -15\n", "what the lender prints at its end")


CASES = [
    ("install into an empty folder", install),
    ("the README's lender and borrower", readme),
    ("examples/c", c_example),
    ("examples/c/state_dict.c", c_state_dict),
    ("examples/cpp", cpp_example),
    ("examples/rust", rust_example),
    ("examples/rust has the structs of the headers", rust_structs),
]
try:
    STATUS = tap.main(CASES)
finally:
    shutil.rmtree(STAGE)
sys.exit(STATUS)
