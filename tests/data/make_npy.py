#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the .npy files of this folder with NumPy: python3 make_npy.py. They are kept so that no test needs NumPy."""
import numpy as np

KINDS = ["?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]


def save(name, array, version=(1, 0)):
    with open(name + ".npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)


def main():
    for kind in KINDS:
        values = np.array([[0, 1, 2], [3, 4, 5]]).astype(kind)
        save("c_" + np.dtype(kind).name, values)
    save("f_float32", np.asfortranarray(np.arange(24, dtype="<f4").reshape(2, 3, 4)))
    save("scalar", np.array(-2.5, dtype="<f8"))
    save("empty", np.zeros((3, 0, 2), dtype="<i4"))
    save("version2", np.arange(5, dtype="<i8"), (2, 0))
    save("version3", np.arange(5, dtype="<i8"), (3, 0))
    save("bad_big_endian", np.arange(3, dtype=">i4"))
    save("bad_record", np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8")]))
    save("bad_text", np.array(["one", "two"]))
    save("bad_date", np.array(["2024-01-01"], dtype="datetime64[D]"))
    np.save("bad_object.npy", np.array([None], dtype=object), allow_pickle=True)


if __name__ == "__main__":
    main()
