#!/usr/bin/env bash
# Runs every fuzz target for FUZZTIME. The go command fuzzes one target of one package at a time.
set -euo pipefail
cd "$(dirname "$0")/.."

# Package and target, one pair a line.
targets=$(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . |
  sed -E 's#^(\./.*)/[^/]*:func (Fuzz.*)$#\1 \2#' | sort -u)
[ -n "$targets" ] || { echo "no fuzz targets" >&2; exit 1; }

while read -r package target; do
  printf '\n== %s %s\n' "$package" "$target"
  go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" "$package" </dev/null
done <<<"$targets"
