#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the benches of a release build and prints a table; all figures as JSON in BUILD/bench.json.
#   bench/run.sh BUILD [--quick] [--json FILE] [GROUP ...]
set -eu
build=${1:?usage: bench/run.sh BUILD [--quick] [--json FILE] [GROUP ...]}
shift
bench=$build/bench/lend-bench
[ -x "$bench" ] || { echo "bench/run.sh: $bench does not exist; build it with: make bench" >&2; exit 1; }
if grep -q '"LEND_TEST_POINTS"\|-DLEND_TEST_POINTS' "$build/compile_commands.json" 2>/dev/null ||
    ! grep -q -- '-O[23]' "$build/compile_commands.json"; then
    echo "bench/run.sh: $build is not a release build without test points; figures would mean nothing" >&2
    exit 1
fi
exec "$bench" --json "$build/bench.json" "$@"
