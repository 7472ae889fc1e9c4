#!/usr/bin/env bash
# The whole product on handwritten digits, ending in a report; flags go on to `claimwise quickstart`.
#
#   bash scripts/quickstart.sh --seed 1 --out runs/seed1
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup_env.sh
exec .venv/bin/claimwise quickstart --out runs/quickstart "$@" # of two --out the last counts
