# SPDX-License-Identifier: MIT
"""What the tests of the lend command share: running it, reading what it prints, and files to give to it.

A script that imports this is started as `SCRIPT LEND SOURCE PROGRAM`: the command, the checkout (for the sample files),
and a program of this folder that lends what no command does. It registers its cases with @test and ends in main()."""
import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import sys
import time
import traceback

LEND, SOURCE, PROGRAM = sys.argv[1:4]
SCALE = int(os.environ.get("LEND_TEST_SCALE", "1"))
DIGITS = os.path.join(SOURCE, "examples/digits/digits.safetensors")
DATA = os.path.join(SOURCE, "tests/data")
tests = []


def test(function):
    tests.append(function)
    return function


def run(*args, code=0, text=None, env=None):
    """Runs lend to its end and returns (stdout, stderr)."""
    done = subprocess.run([LEND, *args], input=text, capture_output=True, text=True, timeout=30 * SCALE,
                          env={**os.environ, **(env or {})})
    assert done.returncode == code, f"lend {args} exits with {done.returncode}, not {code}: {done.stderr}"
    return done.stdout, done.stderr


def eventually(condition, seconds=10):
    """Waits until condition() is true; returns its value."""
    end = time.monotonic() + seconds * SCALE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not so after {seconds} s"
        time.sleep(0.02)


def read_line(stream, seconds=30):
    ready, _, _ = select.select([stream], [], [], seconds * SCALE)
    assert ready, f"no line within {seconds} s"
    return stream.readline().decode()


@contextlib.contextmanager
def shared(*args, count):
    """A running `lend share --json`; yields (process, its lines as dicts). Ended by SIGTERM, unless it has ended."""
    process = subprocess.Popen([LEND, "share", "--json", *args], bufsize=0, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process, [json.loads(read_line(process.stdout)) for _ in range(count)]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            process.wait(10 * SCALE)
        finally:
            process.kill()
            process.stdout.close()
            process.stderr.close()


def show(handle):
    return json.loads(run("show", "--json", handle)[0])


def exporters(*args):
    return {e["pid"]: e for e in json.loads(run("ls", "--json", *args)[0])["exporters"] if e["is_answering"]}


def npy_file(folder, name, descr, shape, data, fortran=False):
    header = str({"descr": descr, "fortran_order": fortran, "shape": tuple(shape)}) + "\n"
    path = os.path.join(folder, name + ".npy")
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + data)
    return path


def safetensors_file(folder, name, entries):
    header, data = {}, b""
    for key, (dtype, shape, raw) in entries.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path = os.path.join(folder, name + ".safetensors")
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    return path


def main():
    print("TAP version 13")
    print(f"1..{len(tests)}")
    n_failed = 0
    for number, function in enumerate(tests, 1):
        try:
            function()
            print(f"ok {number} - {function.__name__}", flush=True)
        except Exception:  # pylint: disable=broad-except
            n_failed += 1
            print(f"not ok {number} - {function.__name__}", flush=True)
            for line in traceback.format_exc().splitlines():
                print("# " + line)
    return 1 if n_failed else 0
