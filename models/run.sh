#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# models/run.sh [small|full]: see check.py.
exec python3 "$(dirname "$0")/check.py" "${1:-small}"
