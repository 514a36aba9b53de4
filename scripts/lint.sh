#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Formatting, clang-tidy, cppcheck, gcc -fanalyzer, shellcheck, and what style asks of every file.
# Usage: scripts/lint.sh BUILD [FILE.c...]; without files, all.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
build=$1
shift
status=0

complain() {
    echo "lint: $*"
    status=1
}

files() {
    git ls-files --cached --others --exclude-standard "$@"
}

mapfile -t all < <(files '*.c' '*.h')
mapfile -t scripts < <(files '*.sh' .ci/run)
sources=("$@")
if ((!$#)); then mapfile -t sources < <(files 'src/*.c' 'cli/*.c'); fi

for file in "${all[@]}"; do
    clang-format --dry-run --Werror "$file" >/dev/null 2>&1 || complain "$file: not formatted (make format)"
    [[ $(head -n 1 "$file") == '/* SPDX-License-Identifier: MIT */' ]] || complain "$file: no SPDX line"
    (($(wc -l <"$file") <= 900)) || complain "$file: more than 900 lines"
    if grep -nE '^[[:space:]]*//|[;{}][[:space:]]+//' "$file"; then complain "$file: a // comment"; fi
done

# Each finding is fatal; the rules are in .clang-tidy. The mutants lack things on purpose.
commands=$(mktemp -d)
trap 'rm -rf "$commands"' EXIT
python3 - "$build" >"$commands/compile_commands.json" <<'END'
import json, sys
entries = json.load(open(sys.argv[1] + "/compile_commands.json"))
json.dump([e for e in entries if "LEND_MUTANT" not in e["command"] and "TEST_POINTS" not in e["command"]], sys.stdout)
END
printf '%s\n' "${sources[@]}" | xargs -P 2 -n 4 clang-tidy -p "$commands" --quiet --warnings-as-errors='*' 2>/dev/null ||
    complain "clang-tidy"

cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 -Iinclude -Isrc \
    --suppress=missingIncludeSystem -D__x86_64__ -D__GNUC__=12 "${sources[@]}" || complain "cppcheck"

for file in "${sources[@]}"; do
    gcc -std=gnu11 -D_GNU_SOURCE -Iinclude -Isrc -Itests/lib -O2 -fanalyzer -Werror -c "$file" -o /dev/null ||
        complain "$file: gcc -fanalyzer"
done

shellcheck "${scripts[@]}" || complain "shellcheck"
((status)) || echo "lint: nothing found"
exit "$status"
