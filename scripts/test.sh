#!/usr/bin/env bash
# The tests; arguments go on to pytest, paths being those of the repository.
#
#   bash scripts/test.sh tests/test_credit.py -k prefix
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup_env.sh test
exec .venv/bin/python -m pytest "$@"
