#!/usr/bin/env bash
# Runs the tests with the race detector five times in a row, with GOMAXPROCS 1, 2, 4, 1 and 2, beside four busy loops.
# STRESS_PACKAGES (./...) narrows them. A run that fails does not stop the next; the last lines name the failed tests
# of each run, and the exit code is 1 if there are any.
set -euo pipefail
cd "$(dirname "$0")/.."

read -ra packages <<<"${STRESS_PACKAGES:-./...}"
log=$(mktemp)
loops=()
stop() {
  kill "${loops[@]}" 2>/dev/null || true
  rm -f "$log"
}
trap stop EXIT
trap 'exit 130' INT TERM HUP
for _ in 1 2 3 4; do
  while kill -0 "$$" 2>/dev/null; do :; done & # a loop also ends after a SIGKILL of this script
  loops+=($!)
done

summary=()
failed=0
for procs in 1 2 4 1 2; do
  title="run $((${#summary[@]} + 1)) of 5, GOMAXPROCS=$procs"
  printf '\n=== %s (%d min %02d s)\n\n' "$title" $((SECONDS / 60)) $((SECONDS % 60))
  if GOMAXPROCS=$procs go test -race -count=1 -timeout 30m "${packages[@]}" 2>&1 | tee "$log"; then
    summary+=("$title: passed")
  else
    failed=1
    names=$(sed -nE 's/^ *--- FAIL: ([^ ]+).*/\1/p; s/^(panic: .*)/\1;/p; s/^FAIL\t([^[:space:]]+).*/in \1;/p' "$log")
    summary+=("$title: FAILED ${names//$'\n'/ }")
  fi
done
printf '\n=== %d min %02d s\n\n' $((SECONDS / 60)) $((SECONDS % 60))
printf '%s\n' "${summary[@]}"
exit "$failed"
