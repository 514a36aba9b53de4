#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs, by name, what building and testing need on Debian 12 and is not there yet. A second run does no work.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
    gcc g++ libc6-dev make meson ninja-build pkg-config python3 python3-pip binutils # building
    libjansson-dev nettle-dev                                       # liblend-file
    scdoc                                                           # man pages
    spin                                                            # models
    libdlpack-dev                                                   # DLPack before 1.0, for the headers' test
    clang clang-format clang-tidy libclang-rt-14-dev cppcheck shellcheck # other compiler and checkers
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static musl-tools # other machines and C libraries
)

missing=()
installed=" $(dpkg-query -W -f '${Package}:${db:Status-Status} ' "${packages[@]}" 2>/dev/null || true)"
for package in "${packages[@]}"; do
    [[ $installed == *" $package:installed "* ]] || missing+=("$package")
done
if ((${#missing[@]})); then
    echo "setup: installing ${missing[*]}"
    sudo=()
    if ((EUID)); then sudo=(sudo); fi
    "${sudo[@]}" apt-get update -q
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

# A dlpack.h of 1.x, which Debian 12 does not have; the headers' test is skipped without it.
dlpack=build-cache/dlpack/dlpack.h
if [[ ! -e $dlpack ]]; then
    mkdir -p build-cache/dlpack
    download=$(mktemp -d)
    trap 'rm -rf "$download"' EXIT
    if python3 -m pip download --retries 1 --timeout 20 --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$download" 'apache-tvm-ffi>=0.1' 2>"$download/log"; then
        python3 - "$download"/*.whl "$dlpack" <<'EOF'
import sys, zipfile
wheel, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith("include/dlpack/dlpack.h"))
    text = archive.read(name)
open(target, "wb").write(text)
EOF
    else
        echo "setup: no dlpack.h 1.x could be had ($(tail -n 1 "$download/log")); its test will be skipped"
    fi
fi
