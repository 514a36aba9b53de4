#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the digits example from a build folder: demo.sh BUILD. One process lends, two unrelated ones classify; all that
# joins them is a pair of FIFOs each. Exit status 0 when everything held, otherwise 1.
set -u
program=$1/examples/digits
file=$(dirname "$0")/digits.safetensors
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
mkfifo "$dir/to2" "$dir/from2" "$dir/to3" "$dir/from3" || exit 1

timeout 120 "$program" classify 0 <"$dir/to2" >"$dir/from2" &
second=$!
timeout 120 "$program" classify 1 <"$dir/to3" >"$dir/from3" &
third=$!
timeout 120 "$program" lend "$file" "$dir/to2" "$dir/from2" "$dir/to3" "$dir/from3"
status=$?
# Had the lender failed before it opened them, the others would wait at the FIFOs for ever.
[ $status -eq 0 ] || kill $second $third 2>/dev/null
wait $second || status=1
wait $third || status=1
[ $status -eq 0 ] || { echo "the digits example failed" >&2; exit 1; }
