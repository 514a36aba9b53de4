#!/bin/sh
# SPDX-License-Identifier: MIT
# run.sh FOLDER [SECONDS] [TARGET]...: builds each target with libFuzzer and AddressSanitizer into FOLDER and runs it
# for that long (60 s), from the seeds; what it finds new is kept in FOLDER. Ends with a line that says what was done.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=${1:?folder} seconds=${2:-60}
if [ $# -gt 2 ]; then shift 2; else set -- wire tree request message file; fi
mkdir -p "$folder"
sources=$(find "$root/src" -name '*.c')
for target in "$@"; do
    # shellcheck disable=SC2086 # one word per source
    clang -std=gnu11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
        -I"$root/include" -I"$root/src" "$here/fuzz_$target.c" $sources -ljansson -pthread -o "$folder/fuzz-$target"
    mkdir -p "$folder/$target"
    "$folder/fuzz-$target" -max_total_time="$seconds" -max_len=8192 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$folder/$target-" "$folder/$target" "$here/seeds/$target" >"$folder/$target.log" 2>&1 || {
        tail -60 "$folder/$target.log"
        echo "fuzz: $target found something; the input is in $folder"
        exit 1
    }
    echo "fuzz-$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$folder/$target.log") runs, nothing found"
done
echo "fuzz: $# targets, $seconds s each, nothing found"
