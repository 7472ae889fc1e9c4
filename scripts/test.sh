#!/usr/bin/env bash
# The tests; arguments go on to pytest, paths being those of the repository. They run in up to four processes, each file in
# one of them, and each with one thread; `-n 0` runs them in this process.
#
#   bash scripts/test.sh tests/test_credit.py -k prefix
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup_env.sh test
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec .venv/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile "$@"
