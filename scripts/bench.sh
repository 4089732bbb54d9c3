#!/usr/bin/env bash
# Runs `brokerctl bench`, with the arguments given, on a daemon of its own that ends with it.
# BENCH_DIR says on which disk the data lies: every confirmed message is synced, so the disk is part of
# the figures. The default is not /tmp, which is memory on many systems.
set -euo pipefail
cd "$(dirname "$0")/.."

home=$(mktemp -d "${BENCH_DIR:-/var/tmp}/brokerd-bench.XXXXXX")
daemon=
stop() {
  [ -z "$daemon" ] || { kill "$daemon" 2>/dev/null && wait "$daemon"; } || true
  rm -rf "$home"
}
trap stop EXIT
trap 'exit 130' INT TERM

# The daemon at hand is meant, whatever the caller's environment names.
unset "${!BROKERD_@}"
export BROKERD_DATA=$home/data

bin/brokerd --data "$BROKERD_DATA" >"$home/log" 2>&1 &
daemon=$!
bin/brokerctl ping --wait 10s >/dev/null || { cat "$home/log" >&2; exit 1; }
bin/brokerctl bench "$@"
