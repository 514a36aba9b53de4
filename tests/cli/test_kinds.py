#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the lend command does with more than plain tensors: groups, files in place, sparse, nested, quantized and
wrapped tensors, attributes. Processes of their own, joined by text only. Prints TAP.

    test_kinds.py LEND SOURCE KINDS

KINDS is the program of kinds.c, which lends one of each kind. Expected figures are computed here."""
import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

from cli import (DATA, DIGITS, LEND, PROGRAM, SCALE, eventually, exporters, main, npy_file, read_line, run,
                 safetensors_file, shared, show, test)

BIG = 64 << 20  # float32 elements, which take most of a second to read


@contextlib.contextmanager
def kinds():
    """A running KINDS; yields (process, {name: handle})."""
    process = subprocess.Popen([PROGRAM], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        handles = {}
        while "pinned" not in handles:
            name, handle = read_line(process.stdout).split()
            handles[name] = handle
        yield process, handles
        process.stdin.close()
        assert process.wait(10 * SCALE) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def without_identity(tensor):
    """storage_id is another one in each process."""
    tensor.pop("storage_id", None)
    for part in tensor.get("components", []):
        without_identity(part)


def many(folder, n):
    """A file of n tensors of two floats, i and -i."""
    return safetensors_file(folder, "many",
                            {f"layer.{i}.weight": ("F32", [2], struct.pack("<2f", i, -i)) for i in range(n)})


@test
def files_in_place_are_lent_where_they_lie():
    with shared("--in-place", DIGITS, count=7) as (process, lines):
        inode, size = os.stat(DIGITS).st_ino, os.path.getsize(DIGITS)
        with open(DIGITS, "rb") as file:
            data = file.read()
        for line in lines:
            seen = show(line["handle"])
            assert seen["is_file"] and seen["is_read_only"] and seen["inode"] == inode, seen
            assert seen["allocation_bytes"] == size and seen["bytes"] == line["bytes"], seen
            at = seen["allocation_offset"]
            assert seen["sha256"] == sha256(data[at:at + seen["bytes"]]), line
        out, _ = run("show", lines[0]["handle"])
        assert re.search(rf"^memory +inode {inode}, .* file, not sealed, read-only, not pinned$", out, re.M), out
        (allocation,) = exporters()[process.pid]["allocations"]
        assert allocation["is_file"] and (allocation["inode"], allocation["bytes"]) == (inode, size), allocation
        assert re.search(rf"used, inode {inode}, file, not sealed$", run("ls", "--all")[0], re.M)
    with shared(DIGITS, count=7) as (process, _):
        assert not any(a["is_file"] for a in exporters()[process.pid]["allocations"])


@test
def every_sample_in_place_is_as_if_it_were_read():
    paths = sorted(glob.glob(os.path.join(DATA, "[!b]*.npy"))) + [DIGITS]
    with shared("-g", *paths, count=1) as (_, (read,)), shared("-g", "-i", *paths, count=1) as (_, (in_place,)):
        assert read["tensors"] == in_place["tensors"] and len(read["tensors"]) == len(paths) + 6
        for a, b in zip(show(read["handle"])["tensors"], show(in_place["handle"])["tensors"]):
            assert b["is_file"] == (b["bytes"] > 0) and b["is_read_only"] and not a["is_file"], b
            for key in ("name", "dtype", "shape", "strides", "bytes", "min", "max", "mean", "nan", "sha256"):
                assert a[key] == b[key], (key, a, b)


@test
def a_file_that_was_cut_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copy(DIGITS, folder)
        with shared("--in-place", path, count=7) as (_, lines):
            last = max(lines, key=lambda line: show(line["handle"])["allocation_offset"])
            os.truncate(path, os.path.getsize(path) - 1)
            out, err = run("show", last["handle"], code=1)
            assert not out and err.count("\n") == 1 and "file has been cut to" in err, err
            _, err = run("share", "--in-place", path, code=1)
            assert path in err and err.count("\n") == 1, err


@test
def a_file_cut_while_it_is_read_ends_with_a_sentence():
    with tempfile.TemporaryDirectory() as folder:
        path = npy_file(folder, "big", "<f4", [BIG], b"")
        head = os.path.getsize(path)
        os.truncate(path, head + 4 * BIG)  # a hole: no space on the disk
        with shared("--in-place", path, count=1) as (process, lines):
            reader = subprocess.Popen([LEND, "show", lines[0]["handle"]], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
            try:
                eventually(lambda: [h for h in exporters()[process.pid]["holders"] if h["pid"] == reader.pid])
                reader.send_signal(signal.SIGSTOP)
                os.truncate(path, head)
                reader.send_signal(signal.SIGCONT)
                out, err = reader.communicate(timeout=30 * SCALE)
            finally:
                reader.kill()
                reader.wait()
        assert reader.returncode == 1 and not out, (reader.returncode, out)
        assert err == "lend show: a file was cut short while its tensors were read\n", err


@test
def a_group_of_2000_through_a_file():
    with tempfile.TemporaryDirectory() as folder:
        n, place = 2000, os.path.join(folder, "handle")
        with shared("--group", "--output", place, many(folder, n), count=1) as (process, (line,)):
            assert line["output"] == place and "handle" not in line and line["bytes"] == 8 * n, line["bytes"]
            names = [entry["name"] for entry in line["tensors"]]
            assert sorted(names) == sorted(f"layer.{i}.weight" for i in range(n))
            assert all(entry["shape"] == [2] and entry["dtype"] == "float32" for entry in line["tensors"])
            with open(place, encoding="ascii") as file:
                text = file.read()
            assert text.startswith("lend1:") and text.endswith("\n") and text.count("\n") == 1
            assert len(text) > 131072, len(text)
            try:
                subprocess.run([LEND, "show", text], check=False)
                raise AssertionError("the kernel takes longer arguments now: lend(1) says 128 KiB")
            except OSError as error:
                assert error.errno == errno.E2BIG, error
            seen = json.loads(run("show", "--json", "@" + place)[0])
            assert [tensor["name"] for tensor in seen["tensors"]] == names and seen["exporter_pid"] == process.pid
            for tensor in seen["tensors"]:
                i = int(tensor["name"].split(".")[1])
                assert (tensor["max"], tensor["min"], tensor["mean"]) == (i, -i, 0), tensor
                assert tensor["sha256"] == sha256(struct.pack("<2f", i, -i)), tensor
            assert len({tensor["storage_id"] for tensor in seen["tensors"]}) == n == seen["n_storages"]
            out, _ = run("show", "-", text=text)
            head = rf"group +{n} tensors, {n} storages\nexporter +pid {process.pid}\npin +not pinned\n\n"
            assert re.match(head, out), out[:200]
            assert len(out.splitlines()) == 4 + n
            assert re.search(r"^layer\.1234\.weight +float32 +\[2\] +8$", out, re.M)
            one = json.loads(run("show", "--json", "--name", "layer.1234.weight", "@" + place)[0])
            assert (one["name"], one["max"], one["min"]) == ("layer.1234.weight", 1234, -1234), one
            out, _ = run("show", "-n", "layer.7.weight", "@" + place)
            assert re.search(r"^max +7$", out, re.M) and "layer" not in out, out
            out, err = run("show", "--name", "layer.2000.weight", "@" + place, code=1)
            assert not out and err == 'lend show: the group has no tensor "layer.2000.weight"\n', err


@test
def a_group_in_one_line_for_people():
    path = os.path.join(DATA, "c_int16.npy")
    process = subprocess.Popen([LEND, "share", "-g", "-i", path, DIGITS], bufsize=0, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    try:
        what, n, word, size, handle = read_line(process.stdout).split()
        assert (what, n, word) == ("group", "8", "tensors")
        assert f"8 tensors lent as a group by process {process.pid};" in read_line(process.stderr)
        seen = show(handle)
        assert int(size) == sum(tensor["bytes"] for tensor in seen["tensors"])
        assert seen["tensors"][0]["name"] == "c_int16" and all(tensor["is_file"] for tensor in seen["tensors"])
        assert re.search(r"^w1 +float32 +\[64, 48\] +12288  file, not sealed, read-only$", run("show", handle)[0], re.M)
        assert json.loads(run("show", "--json", "--name", "c_int16", handle)[0])["max"] == 5
        process.terminate()
        assert process.wait(10 * SCALE) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@test
def clashing_names_get_their_files():
    with tempfile.TemporaryDirectory() as folder:
        a = safetensors_file(folder, "a", {"w": ("U8", [1], b"\1"), "only_a": ("U8", [1], b"\2")})
        b = safetensors_file(folder, "b", {"only_b": ("U8", [1], b"\3"), "w": ("U8", [1], b"\4")})
        with shared("--group", a, b, count=1) as (_, (line,)):
            wanted = [(f"{a}:w", a, 1), ("only_a", a, 2), ("only_b", b, 3), (f"{b}:w", b, 4)]
            assert [(t["name"], t["file"]) for t in line["tensors"]] == [(name, path) for name, path, _ in wanted], line
            assert [(t["name"], t["max"]) for t in show(line["handle"])["tensors"]] == [(n, v) for n, _, v in wanted]
        out, err = run("share", "--group", a, b, a, code=1)
        assert not out and err == f"lend share: {a} is given twice; a group takes each file once\n", err


@test
def one_file_is_one_under_any_name():
    with tempfile.TemporaryDirectory() as folder:
        a = safetensors_file(folder, "a", {"w": ("U8", [1], b"\1")})
        same = safetensors_file(folder, "same", {"w": ("U8", [1], b"\1")})
        link, hard = os.path.join(folder, "link"), os.path.join(folder, "hard")
        os.symlink(a, link)
        os.link(a, hard)
        for other in (os.path.join(folder, ".", "a.safetensors"), link, hard):
            out, err = run("share", "--group", a, same, other, code=1)
            assert not out and err == f"lend share: {a} and {other} are one file; a group takes each once\n", err
        with shared("--group", a, same, count=1) as (_, (line,)):
            assert [t["name"] for t in line["tensors"]] == [f"{a}:w", f"{same}:w"], line


@test
def output_replaces_only_a_handle():
    with tempfile.TemporaryDirectory() as folder:
        a = safetensors_file(folder, "a", {"w": ("U8", [1], b"\1")})
        b = safetensors_file(folder, "b", {"v": ("U8", [1], b"\2")})
        empty, short, nothing = (os.path.join(folder, name) for name in ("empty", "short", "nothing"))
        for path, data in ((empty, b""), (short, b"lend1")):
            with open(path, "wb") as file:
                file.write(data)
        os.symlink(os.path.join(folder, "none"), nothing)
        files = sorted(os.listdir(folder))
        for path, data in ((a, None), (empty, b""), (short, b"lend1")):
            with open(path, "rb") as file:
                before = file.read() if data is None else data
            out, err = run("share", "-g", "-o", path, b, code=1)
            assert not out and err == (f"lend share: {path} exists and holds no handle: --output replaces only a "
                                       "handle; give another name\n"), err
            with open(path, "rb") as file:
                assert file.read() == before, path
        _, err = run("share", "-g", "-o", nothing, b, code=1)
        assert "is a link to nothing" in err and os.path.islink(nothing), err
        _, err = run("share", "-g", "-o", folder, b, code=1)
        assert "Is a directory" in err, err
        assert sorted(os.listdir(folder)) == files

        place, link = os.path.join(folder, "handle"), os.path.join(folder, "link")
        os.symlink(place, link)
        with shared("-o", place, a, count=1) as (_, (_,)):
            assert show("@" + place)["max"] == 1
            with shared("-o", link, b, count=1) as (_, (line,)):
                assert line["output"] == link and show("@" + place)["max"] == 2 and os.path.islink(link), line
        assert sorted(os.listdir(folder)) == sorted(files + ["handle", "link"])


@test
def a_share_that_fails_leaves_no_file():
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "handle")
        bad = os.path.join(folder, "bad")
        shutil.copy(os.path.join(DATA, "scalar.npy"), bad)
        os.truncate(bad, os.path.getsize(bad) - 1)
        run("share", "-o", place, bad, code=1)
        assert os.listdir(folder) == ["bad"]
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([LEND, "share", "-o", place, os.path.join(DATA, "scalar.npy")], stdout=full,
                                  stderr=subprocess.PIPE, timeout=30 * SCALE, check=False)
        assert done.returncode == 1 and b"writing to standard output failed" in done.stderr, done
        assert os.listdir(folder) == ["bad"]
        read_end, write_end = os.pipe()
        with shared("-o", f"/proc/{os.getpid()}/fd/{write_end}", os.path.join(DATA, "scalar.npy"), count=1):
            os.close(write_end)
            with open(read_end, encoding="ascii") as pipe:
                assert show(pipe.readline().strip())["max"] == -2.5


@test
def output_that_cannot_be():
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "handle")
        out, err = run("share", "--output", place, DIGITS, code=1)
        assert not out and "there are 7 tensors: lend them as one with --group" in err, err
        assert not os.path.exists(place)
        _, err = run("share", "-g", "-o", os.path.join(folder, "none", "handle"), DIGITS, code=1)
        assert "cannot write to" in err and "No such file" in err, err
        out, err = run("share", "-g", "-o", "/dev/full", DIGITS, code=1)
        assert not out and err == "lend share: writing to /dev/full failed: No space left on device\n", err
        with shared("-o", place, os.path.join(DATA, "scalar.npy"), count=1) as (_, (line,)):
            assert line["output"] == place and show("@" + place)["max"] == -2.5, line
    for args in (["share", "--output"], ["share", "--group"], ["show", "--name"], ["show", "--name", "x"]):
        run(*args, code=2)


@test
def garbage_from_files_and_standard_input():
    with tempfile.TemporaryDirectory() as folder, shared("--group", DIGITS, count=1) as (_, (line,)):
        good = line["handle"].encode()
        place = os.path.join(folder, "garbage")
        many_handles = b"\n".join([good] * 3)
        for data in (b"", b"\0", b"\xff" * 70000, b"lend1:", good + b"\0", b"\0" + good, good[:-1], good[:-2000],
                     good + good, many_handles, good[:100] + b"\xff" + good[101:], good[:60] + b"=" * 70000):
            with open(place, "wb") as file:
                file.write(data)
            out, err = run("show", "@" + place, code=1)
            assert not out and err.count("\n") == 1 and err.isascii(), (data[:40], err)
            with open(place, "rb") as file:
                done = subprocess.run([LEND, "show", "-j", "-"], stdin=file, capture_output=True, check=False)
            assert done.returncode == 1 and not done.stdout and done.stderr.decode() == err, (data[:40], done.stderr)
        for at in range(6, len(good), 53):
            damaged = good[:at] + (b"A" if good[at:at + 1] != b"A" else b"B") + good[at + 1:]
            run("show", damaged.decode(), code=1)
        with open(place, "wb") as file:
            file.write(b" \t\n" * 20000 + good + b"\r\n" * 20000)
        assert len(show("@" + place)["tensors"]) == 7
        for source, part in ((os.path.join(folder, "none"), "No such file"), (folder, "Is a directory"),
                             ("/dev/zero", "longer than any handle"), ("", "give @FILE, the file that holds")):
            out, err = run("show", "@" + source, code=1)
            assert not out and source in err and part in err and err.count("\n") == 1, err


@test
def layouts_are_shown_with_their_components():
    with kinds() as (process, handles):
        seen = show(handles["csr"])
        assert (seen["layout"], seen["dtype"], seen["shape"], seen["bytes"]) == ("csr", "float32", [2, 3], 48), seen
        assert seen["attributes"] == ["requires_grad"] and "min" not in seen, seen
        assert (seen["exporter_pid"], seen["n_exporters"], seen["is_pinned"]) == (process.pid, 1, False), seen
        parts = {part["name"]: part for part in seen["components"]}
        assert list(parts) == ["crow_indices", "col_indices", "values"], parts
        assert parts["values"]["sha256"] == sha256(struct.pack("<2f", 1.5, -2.5))
        assert parts["col_indices"]["sha256"] == sha256(struct.pack("<2q", 0, 2))
        assert all(part["layout"] == "strided" and part["inode"] == parts["values"]["inode"] for part in parts.values())
        assert show(handles["coo"])["is_coalesced"] is True
        seen = show(handles["jagged"])
        assert (seen["shape"], seen["dim"]) == ([2, -1, 4], 1) and seen["components"][0]["mean"] == 10.5, seen
        seen = show(handles["quantized"])
        assert (seen["scale"], seen["zero_point"], seen["dtype"]) == (0.25, -3, "uint8"), seen
        seen = show(handles["per_channel"])
        assert seen["dim"] == 1 and [p["name"] for p in seen["components"]] == ["values", "scales", "zero_points"], seen
        seen = show(handles["wrapper"])
        assert seen["user"] == {"tag": 7, "bytes": 5} and [p["name"] for p in seen["components"]] == ["0", "1"], seen
        assert seen["components"][0]["components"][2]["sha256"] == sha256(struct.pack("<2f", 1.5, -2.5)), seen
        assert seen["components"][1]["attributes"] == ["buffer"], seen


@test
def layouts_are_shown_to_people():
    with kinds() as (process, handles):
        out, _ = run("show", handles["wrapper"])
        place = r"inode \d+, storage at \d+"
        assert re.fullmatch("layout +wrapper\ndtype +float32\nshape +\\[2, 3\\]\nelements +6 \\(52 B\\)\n"
                            "user +5 bytes, tag 7\ncomponents +2\n"
                            "  0 +float32 \\[2, 3\\], 48 bytes, csr\n"
                            f"    crow_indices +int64 \\[3\\], 24 bytes, {place}\n"
                            f"    col_indices +int64 \\[2\\], 16 bytes, {place}\n"
                            f"    values +float32 \\[2\\], 8 bytes, {place}\n"
                            f"  1 +uint8 \\[2, 2\\], 4 bytes, {place}, buffer\n"
                            f"exporter +pid {process.pid}\npin +not pinned\n", out), out
        for name, first in (("coo", "coo, coalesced"), ("quantized", "quantized, scale 0.25, zero point -3"),
                            ("jagged", "jagged, ragged along dimension 1"),
                            ("per_channel", "quantized_per_channel, along dimension 1")):
            assert re.match(rf"layout +{first}\n", run("show", handles[name])[0]), name
        assert re.search(r"^shape +\[2, \*, 4\]$", run("show", handles["jagged"])[0], re.M)


@test
def figures_are_those_of_the_values():
    with kinds() as (_, handles):
        seen = show(handles["conj"])
        assert seen["attributes"] == ["conj"] and seen["is_magnitude"] and (seen["min"], seen["max"]) == (1, 5), seen
        assert seen["sha256"] == sha256(struct.pack("<4f", 3, -4, 0, 1)), seen
        seen = show(handles["neg"])
        assert (seen["min"], seen["max"], seen["sha256"]) == (-2, 3, sha256(struct.pack("<3f", -1, -2, 3))), seen
        same = show(handles["parameter"])
        assert (same["inode"], same["allocation_offset"]) == (seen["inode"], seen["allocation_offset"]), (seen, same)
        assert (same["min"], same["max"], same["sha256"]) == (-3, 2, sha256(struct.pack("<3f", 1, 2, -3))), same
        assert same["attributes"] == ["requires_grad", "parameter"] and same["user"] == {"tag": 7, "bytes": 3}, same
        out, _ = run("show", handles["parameter"])
        assert re.search(r"^attributes +requires_grad, parameter\nuser +3 bytes, tag 7$", out, re.M), out


@test
def meta_tensors_have_no_values():
    with kinds() as (_, handles):
        seen = show(handles["meta"])
        assert seen["is_meta"] and seen["shape"] == [1000, 1000] and seen["bytes"] == 4000000, seen
        assert [seen[key] for key in ("min", "max", "mean", "nan", "sha256")] == [None] * 5 and seen["inode"] == 0, seen
        out, _ = run("show", handles["meta"])
        assert re.search(r"^memory +none: a meta tensor has a shape and no values, not pinned$", out, re.M), out
        assert "min" not in out and "sha256" not in out, out


@test
def storages_without_memory_are_told_so():
    with tempfile.TemporaryDirectory() as folder:
        path = npy_file(folder, "empty", "<f4", [0], b"")
        with shared("-g", path, os.path.join(DATA, "scalar.npy"), count=1) as (process, _):
            storages = exporters("--all")[process.pid]["storages"]
            (slot,) = [s["slot"] for s in storages if s["allocation"] is None and s["bytes"] == 0]
            assert len(storages) == 2, storages
            out, _ = run("ls", "--all")
            assert re.search(rf"^  storage {slot}: no memory, 0 pins$", out, re.M), out
            assert str(2**32 - 1) not in out, out


@test
def indices_are_checked_on_request():
    with kinds() as (_, handles):
        run("show", handles["broken"])
        out, err = run("show", "--check", handles["broken"], code=1)
        assert not out and "col_indices" in err and err.count("\n") == 1, err
        checked, plain = json.loads(run("show", "-c", "-j", handles["csr"])[0]), show(handles["csr"])
        without_identity(checked)
        without_identity(plain)
        assert checked == plain, (checked, plain)
        _, err = run("show", "--check", handles["group"], code=1)
        assert '"broken"' in err and "col_indices" in err, err
        run("show", "--check", "--name", "csr", handles["group"])
        run("show", "--check", "--name", "broken", handles["group"], code=1)


@test
def a_tensor_of_a_group_as_if_it_were_alone():
    with kinds() as (_, handles):
        whole = {tensor["name"]: tensor for tensor in show(handles["group"])["tensors"]}
        assert list(whole) == [name for name in handles if name not in ("group", "pinned")]
        for name, wanted in whole.items():
            alone, picked = show(handles[name]), json.loads(run("show", "-j", "-n", name, handles["group"])[0])
            assert picked.pop("name") == name
            for tensor in (alone, picked, wanted):
                without_identity(tensor)
            # What the handle says, of one tensor or of all, is beside what the tensor is.
            assert alone == picked and wanted.items() <= dict(picked, name=name).items(), name
            out, _ = run("show", "-n", name, handles["group"])
            assert out == run("show", handles[name])[0], name
        _, err = run("show", "--name", "csr", handles["csr"], code=1)
        assert "--name picks a tensor of a group" in err, err
        _, err = run("show", "--name", "csr\x1b[2J", handles["group"], code=1)
        assert "\x1b" not in err and "csr?[2J" in err, err


@test
def aliases_are_told_by_their_storages():
    with kinds() as (_, handles):
        ids = {tensor["name"]: tensor.get("storage_id") for tensor in show(handles["group"])["tensors"]}
        assert ids["neg"] == ids["parameter"] and ids["conj"] != ids["neg"] and ids["meta"] and ids["csr"] is None, ids


@test
def a_pinned_group_uses_its_pin_up():
    with kinds() as (process, handles):
        (pin,) = exporters()[process.pid]["pins"]
        assert pin["storages"] == show(handles["group"])["n_storages"] - 1, pin  # the meta storage needs none
        line = rf"^  pin 0x\w+ on storage \d+ and {pin['storages'] - 1} more: .* sent by pid {process.pid}$"
        assert re.search(line, run("ls", "--all")[0], re.M), line
        out, _ = run("show", "--name", "csr", handles["pinned"])
        assert "the handle was pinned, its pin is now used up" in out, out
        assert exporters()[process.pid]["pins"] == []


if __name__ == "__main__":
    sys.exit(main())
