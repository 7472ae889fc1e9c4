#!/usr/bin/env bash
# Makes .venv with Python 3.11 or 3.12 and installs claimwise there, editable, with its pinned packages. Where that is
# done already (.venv/claimwise.stamp), it does nothing.
#
#   bash scripts/setup_env.sh             what the commands need
#   bash scripts/setup_env.sh test dev    and these extras of pyproject.toml
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

find_python() {
  local candidate
  for candidate in python3.12 python3.11 python3; do
    if fits "$candidate"; then # tried, not looked up: version managers leave names that do not run
      echo "$candidate"
      return
    fi
  done
  echo "setup: claimwise needs Python 3.11 or 3.12; neither python3.12, python3.11 nor python3 is one" >&2
  return 1
}

make_venv() {
  local python
  if [ -e .venv/bin/python ] && ! fits .venv/bin/python; then
    echo "setup: .venv has $(.venv/bin/python -V 2>&1 || true); claimwise needs 3.11 or 3.12, so remove .venv" >&2
    return 1
  fi
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "setup: making .venv with $("$python" -V)"
    "$python" -m venv .venv || {
      echo "setup: $python cannot make .venv; some systems keep its venv module in a package of its own" >&2
      return 1
    }
  fi
}

# The stamp: a hash of what decides the installation, then the extras that are in.
state() { .venv/bin/python -c 'import hashlib, os, sys
print(hashlib.sha256(open("pyproject.toml", "rb").read() + f"{os.getcwd()} {sys.version}".encode()).hexdigest())'; }

install() {
  local stamp=.venv/claimwise.stamp now known="" missing="" extra extras
  now=$(state)
  if [ -f "$stamp" ]; then
    known=$(tail -n +2 "$stamp")
    [ "$(head -n 1 "$stamp")" = "$now" ] || missing=all
  else
    missing=all
  fi
  for extra in "$@"; do
    grep -qx "$extra" <<<"$known" || missing+=" $extra"
  done
  [ -n "$missing" ] || return 0
  extras=$(printf '%s\n' "$known" "$@" | sed '/^$/d' | sort -u)
  echo "setup: installing claimwise and its packages into .venv, once; this takes a few minutes"
  rm -f "$stamp"
  .venv/bin/python -m pip install --disable-pip-version-check --editable ".${extras:+[$(paste -sd, - <<<"$extras")]}"
  printf '%s\n' "$now" "$extras" >"$stamp"
}

make_venv
install "$@"
