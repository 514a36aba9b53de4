#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The lend command end to end: share, show and ls in processes of their own, joined by text only. Prints TAP.

    test_cli.py LEND SOURCE SENDER

LEND is the command, SOURCE the checkout (for the sample files), SENDER the program of sender.c, which makes pins.
Expected figures are computed here, from the files' bytes, with the standard library only."""
import contextlib
import hashlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

from cli import (DATA, DIGITS, LEND, PROGRAM, SCALE, eventually, exporters, main, npy_file, read_line, run,
                 safetensors_file, shared, show, test)


def digits_entries():
    """name -> (dtype, shape, bytes) of the sample, read here."""
    with open(DIGITS, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in header.items()}


@test
def version_and_help():
    out, _ = run("--version")
    assert re.fullmatch(r"lend \d+\.\d+\.\d+\nabi \d+\nwire \d+\.\d+\nshared memory layout [0-9a-f]{16}\n", out), out
    assert run("version")[0] == out
    for command in (["help"], ["--help"], *(["help", c] for c in ("share", "show", "ls")), ["ls", "--help"]):
        out, _ = run(*command)
        lines = out.splitlines()
        assert out.startswith("Usage: lend") and len(lines) <= 23 and max(map(len, lines)) <= 80, out


@test
def wrong_usage_is_2():
    for args in ([], ["nonsense"], ["help", "nonsense"], ["share"], ["show"], ["show", "a", "b"], ["ls", "x"],
                 ["ls", "--nonsense"], ["share", "--nonsense", DIGITS], ["help", "share", "show"],
                 ["show", "--timeout", "0", "x"], ["show", "--timeout", "5x", "x"], ["show", "--timeout"]):
        out, err = run(*args, code=2)
        assert not out and err, args
        assert all(line.startswith(("lend", "Usage", "See")) for line in err.splitlines()) or not args, err


@test
def share_show_digits():
    entries = digits_entries()
    with shared(DIGITS, count=len(entries)) as (process, lines):
        assert {line["name"] for line in lines} == set(entries)
        for line in lines:
            dtype, shape, raw = entries[line["name"]]
            assert line["shape"] == shape and line["bytes"] == len(raw) and line["file"] == DIGITS
            seen = show(line["handle"])
            assert seen["sha256"] == hashlib.sha256(raw).hexdigest()
            assert seen["shape"] == shape and seen["dtype"] == line["dtype"] and seen["exporter_pid"] == process.pid
            assert not seen["is_read_only"] and not seen["is_pinned"] and seen["nan"] == 0
            values = struct.unpack(f"<{len(raw) // 4}f", raw) if dtype == "F32" else list(raw)
            assert seen["min"] == min(values) and seen["max"] == max(values)
            assert abs(seen["mean"] - sum(values) / len(values)) < 1e-9
        assert len({show(line["handle"])["inode"] for line in lines}) == 1
        process.terminate()
        assert process.wait(10 * SCALE) == 0
        _, err = run("show", lines[0]["handle"], code=1)
        assert f"exporter: pid {process.pid}" in err, err


@test
def share_prints_lines_for_people():
    process = subprocess.Popen([LEND, "share", os.path.join(DATA, "c_int16.npy")], bufsize=0, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    try:
        name, dtype, *shape, size, handle = read_line(process.stdout).split()
        assert (name, dtype, " ".join(shape), size) == ("c_int16", "int16", "[2, 3]", "12")
        assert "stop with Ctrl-C" in read_line(process.stderr)
        out, _ = run("show", "-", text=handle + "\n")
        assert re.search(r"^min +0$", out, re.M) and re.search(r"^max +5$", out, re.M), out
        assert re.search(r"^mean +2\.5$", out, re.M) and re.search(r"^shape +\[2, 3\]$", out, re.M), out
        assert re.search(r"^sha256 +" + hashlib.sha256(struct.pack("<6h", *range(6))).hexdigest() + "$", out, re.M)
        process.send_signal(signal.SIGINT)
        assert process.wait(10 * SCALE) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@test
def share_read_only():
    with shared("--read-only", os.path.join(DATA, "c_float32.npy"), count=1) as (_, lines):
        assert show(lines[0]["handle"])["is_read_only"]


@test
def every_numpy_dtype():
    kinds = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
    paths = [os.path.join(DATA, f"c_{kind}.npy") for kind in kinds.split()]
    with shared(*paths, count=len(paths)) as (_, lines):
        for kind, line in zip(kinds.split(), lines):
            seen = show(line["handle"])
            top = 1 if kind == "bool" else 5
            assert (seen["dtype"], seen["min"], seen["max"]) == (kind, 0, top), seen
            assert seen["mean"] == (5 / 6 if kind == "bool" else 2.5), seen
            assert seen["is_magnitude"] == kind.startswith("complex")


@test
def small_floats_and_packed_elements():
    nan, inf = float("nan"), float("inf")
    entries = {
        # Four packed values each: 1, -1, 0.5 and 6 (F4); 1, -1, 0.125 and 7.5 (E2M3); 1, -1, 0.0625 and 28 (E3M2).
        "F4": ("F4", [4], bytes([0x2 | 0xA << 4, 0x1 | 0x7 << 4])),
        "F6_E2M3": ("F6_E2M3", [4], (0x08 | 0x28 << 6 | 0x01 << 12 | 0x1F << 18).to_bytes(3, "little")),
        "F6_E3M2": ("F6_E3M2", [4], (0x0C | 0x2C << 6 | 0x01 << 12 | 0x1F << 18).to_bytes(3, "little")),
        "F8_E4M3": ("F8_E4M3", [4], bytes([0x38, 0xB8, 0x7E, 0x7F])),
        "F8_E5M2": ("F8_E5M2", [4], bytes([0x3C, 0xBC, 0x7C, 0x7F])),
        "F8_E8M0": ("F8_E8M0", [3], bytes([127, 126, 255])),
        "BF16": ("BF16", [4], struct.pack("<4H", 0x3F80, 0xBF80, 0x7F80, 0x7FC0)),
        "F16": ("F16", [4], struct.pack("<4e", 65504, -6e-8, 0.5, nan)),
        "F64": ("F64", [4], struct.pack("<4d", 1e300, -inf, nan, 0)),
        "C64": ("C64", [2], struct.pack("<4f", 3, 4, 0, -1)),
        "I64": ("I64", [2], struct.pack("<2q", 2**63 - 1, -2**63)),
        "empty": ("F32", [0, 3], b""),
    }
    wanted = {
        "F4": (-1, 6, 0), "F6_E2M3": (-1, 7.5, 0), "F6_E3M2": (-1, 28, 0), "F8_E4M3": (-1, 448, 1),
        "F8_E5M2": (-1, "inf", 1), "F8_E8M0": (0.5, 1, 1), "BF16": (-1, "inf", 1), "F16": (-(2**-24), 65504, 1),
        "F64": ("-inf", 1e300, 1), "C64": (1, 5, 0), "I64": (-2**63, 2**63 - 1, 0), "empty": (None, None, 0),
    }
    with tempfile.TemporaryDirectory() as folder:
        with shared(safetensors_file(folder, "kinds", entries), count=len(entries)) as (_, lines):
            for line in lines:
                seen, name = show(line["handle"]), line["name"]
                assert (seen["min"], seen["max"], seen["nan"]) == wanted[name], (name, seen)
                assert seen["sha256"] == hashlib.sha256(entries[name][2]).hexdigest(), name


@test
def fortran_order_hashes_in_c_order():
    with shared(os.path.join(DATA, "f_float32.npy"), count=1) as (_, lines):
        seen = show(lines[0]["handle"])
        assert seen["shape"] == [2, 3, 4] and seen["strides"] == [1, 2, 6]
        assert seen["sha256"] == hashlib.sha256(struct.pack("<24f", *range(24))).hexdigest()


@test
def files_that_cannot_be_shared():
    with tempfile.TemporaryDirectory() as folder:
        short = npy_file(folder, "short", "<f4", [4], b"1234")
        negative = npy_file(folder, "negative", "<f4", [2, -3], b"")
        empty = safetensors_file(folder, "empty", {})
        out, err = run("share", empty, code=1)
        assert not out and err == f"lend share: {empty} holds no tensors; there is nothing to lend\n", err
        _, err = run("share", "/etc/passwd", code=1)
        assert err == "lend share: /etc/passwd is neither .npy nor .safetensors\n", err
        for path, part in ((negative, "the header has shape (2, -3)"), (folder, "directory"),
                           (os.path.join(folder, "none.npy"), "No such file"), (short, "cut short"),
                           (os.path.join(DATA, "bad_object.npy"), "'|O'")):
            out, err = run("share", os.path.join(DATA, "scalar.npy"), path, code=1)
            assert not out and part in err and err.count("\n") == 1, err


@test
def names_cannot_reach_the_terminal():
    with tempfile.TemporaryDirectory() as folder:
        path = safetensors_file(folder, "x", {"\x1b]0;evil\x07\u009bname": ("U8", [1], b"a")})
        process = subprocess.Popen([LEND, "share", path], bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        line = read_line(process.stdout)
        process.terminate()
        assert process.wait(10 * SCALE) == 0
        process.stdout.close()
        assert line.startswith("?]0;evil???name "), ascii(line)


@test
def long_and_turning_names_are_shown_safely():
    names = ["\u202eevil\u2069", "ä" * 200]
    with tempfile.TemporaryDirectory() as folder:
        path = safetensors_file(folder, "x", {name: ("U8", [1], b"a") for name in names})
        process = subprocess.Popen([LEND, "share", path], bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        shown = {read_line(process.stdout).split()[0] for _ in names}
        process.terminate()
        assert process.wait(10 * SCALE) == 0
        process.stdout.close()
        assert shown == {"???evil???", "ä" * 126 + "..."}, ascii(shown)


@test
def share_without_a_reader():
    path = os.path.join(DATA, "scalar.npy")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([LEND, "share", path], stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
                          timeout=30 * SCALE)
    os.close(writer)
    assert done.returncode == 1 and "Broken pipe" in done.stderr, done.stderr


@test
def garbage_handles():
    for text in ("", "x", "lend1:", "lend1:AAAA", "lend1:" + "A" * 300, "lend9:AAAA", "lend1:" + "A" * 5000, "\x1b[2J"):
        out, err = run("show", text, code=1)
        assert not out and err.count("\n") == 1 and "\x1b" not in err, err
        run("show", "-", text=text, code=1)
    with shared(os.path.join(DATA, "scalar.npy"), count=1) as (_, lines):
        handle = lines[0]["handle"]
        for at in range(6, len(handle), 7):
            damaged = handle[:at] + ("A" if handle[at] != "A" else "B") + handle[at + 1:]
            run("show", damaged, code=1)
        run("show", handle[:-4], code=1)
        assert show(f"  {handle} ")["max"] == -2.5


@test
def ls_lists_what_is_lent():
    entries = digits_entries()
    with shared(DIGITS, count=len(entries)) as (process, _):
        e = exporters()[process.pid]
        assert e["n_storages"] == len(entries) and e["storage_bytes"] >= sum(len(v[2]) for v in entries.values())
        assert len(e["allocations"]) >= 1 and e["n_limbo"] == 0 and e["pins"] == [] and "storages" not in e
        assert e["command"].startswith("lend") and 0 < e["up_ns"] < 60e9 * SCALE
        e = exporters("--all")[process.pid]
        assert len(e["storages"]) == len(entries) and all(s["holders"] == [] for s in e["storages"])
        out, _ = run("ls", "--all")
        assert re.match(r"\d+ exporters?[ :(]", out) and f"pid {process.pid} (" in out, out
    assert process.pid not in exporters()


@contextlib.contextmanager
def holding(handle):
    """A `lend show` that holds its tensor: it waits to write into a pipe that is full and that nobody reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"0")
    os.set_blocking(writer, True)
    process = subprocess.Popen([LEND, "show", handle], stdin=subprocess.DEVNULL, stdout=writer)
    os.close(writer)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        os.close(reader)


@test
def ls_tells_who_holds_and_forgets_the_killed():
    with shared(os.path.join(DATA, "scalar.npy"), os.path.join(DATA, "c_int8.npy"), count=2) as (process, lines):
        with holding(lines[1]["handle"]) as holder:
            (seen,) = eventually(lambda: [h for h in exporters()[process.pid]["holders"] if h["storages"]])
            assert seen["pid"] == holder.pid and seen["command"] == "lend" and seen["storages"] == 1, seen
            assert seen["bytes"] >= 6 and 0 <= seen["age_ns"] < 60e9 * SCALE, seen
            held = [s for s in exporters("--all")[process.pid]["storages"] if s["holders"]]
            (one,) = held[0]["holders"]
            assert len(held) == 1 and (one["pid"], one["count"], one["command"]) == (holder.pid, 1, "lend"), held
            assert one["since_ns"] > 0 and 0 <= one["age_ns"] < 60e9 * SCALE, one
            out, _ = run("ls", "--all")
            assert f"held by pid {holder.pid} (lend): 1 storage, " in out, out
            assert re.search(rf"^    held by pid {holder.pid} \(lend\), 1 time, in contact for .* s$", out, re.M), out
            assert re.search(r"^  allocation 0: generation \d+, .* used, inode \d+$", out, re.M), out
            assert "allocation 0: " not in run("ls")[0]
            holder.kill()
            holder.wait()
            eventually(lambda: not exporters("--all")[process.pid]["holders"], 1)
        assert all(not s["holders"] for s in exporters("--all")[process.pid]["storages"])


@test
def pins_are_summed_up_and_used_up():
    sender = subprocess.Popen([PROGRAM, "3"], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        handles = [read_line(sender.stdout).strip() for _ in range(3)]
        e = exporters("--all")[sender.pid]
        assert len(e["pins"]) == e["n_limbo"] == 3 and all(p["sender_pid"] == sender.pid for p in e["pins"]), e
        out, _ = run("ls")
        assert re.search(rf"^  sent by pid {sender.pid}: 3 pins, 12.0 KiB, the oldest .* s old$", out, re.M), out
        assert "dropped here, held by others or by pins" in out and "  pin 0x" not in out, out
        out, _ = run("ls", "--all")
        assert len(re.findall(rf"^  pin 0x.* sent by pid {sender.pid}$", out, re.M)) == 3, out
        out, _ = run("show", handles[0])
        assert "its pin is now used up" in out, out
        _, err = run("show", handles[0], code=1)
        assert "pin may have been used already" in err and f"pid {sender.pid}" in err, err
        assert len(exporters()[sender.pid]["pins"]) == 2
        sender.stdin.close()
        assert sender.wait(10 * SCALE) == 0
    finally:
        sender.kill()
        sender.wait()
        sender.stdin.close()
        sender.stdout.close()


@test
def ls_after_a_kill():
    with shared(os.path.join(DATA, "scalar.npy"), count=1) as (process, lines):
        process.kill()
        process.wait()
        assert process.pid not in exporters()
        run("show", lines[0]["handle"], code=1)


@test
def ls_shows_the_stopped_as_not_answering():
    path = os.path.join(DATA, "scalar.npy")
    with contextlib.ExitStack() as stack:
        stopped = [stack.enter_context(shared(path, count=1))[0] for _ in range(4)]
        alive, _ = stack.enter_context(shared(path, count=1))
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        answer = json.loads(run("ls", "--json")[0])
        took = time.monotonic() - start
        assert answer["totals"]["not_answering"] >= 4 and alive.pid in {e.get("pid") for e in answer["exporters"]}
        assert all(e["error"] == "not answering" for e in answer["exporters"] if not e["is_answering"])
        # One after the other, four would take 800 ms.
        assert took < 0.7 * SCALE, took
        assert {p.pid for p in stopped} <= {e.get("pid") for e in answer["exporters"] if not e["is_answering"]}
        out, _ = run("ls")
        assert all(f"pid {p.pid} (lend): not answering (stopped?)" in out for p in stopped), out
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        eventually(lambda: {p.pid for p in stopped} <= set(exporters()))


@test
def show_of_a_stopped_exporter_ends():
    with shared(os.path.join(DATA, "scalar.npy"), count=1) as (process, lines):
        process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        _, err = run("show", "--timeout", "0.5", lines[0]["handle"], code=1)
        assert 0.5 <= time.monotonic() - start < 20 * SCALE and err.count("\n") == 1
        assert f"pid {process.pid}" in err and "0.5 s" in err and "raise --timeout" in err, err
        process.send_signal(signal.SIGCONT)
        assert show(lines[0]["handle"])["max"] == -2.5


@test
def closed_output_is_an_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run([LEND, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "standard output" in done.stderr


if __name__ == "__main__":
    sys.exit(main())
