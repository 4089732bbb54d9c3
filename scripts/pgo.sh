#!/usr/bin/env bash
# Makes cmd/brokerd/default.pgo anew: what the daemon does under the workloads of `brokerctl bench`, from which the
# compiler learns what to inline. Worth doing after the path of a message has changed.
set -euo pipefail
cd "$(dirname "$0")/.."

address=127.0.0.1:6464
data=$(mktemp -d)
cp bin/brokerd "$data/brokerd" # the profile names the program's path
"$data/brokerd" --data "$data" --pprof "$address" 2> /dev/null &
daemon=$!
trap 'kill "$daemon" 2> /dev/null; wait "$daemon" 2> /dev/null || true; rm -rf "$data"' EXIT
export BROKERD_DATA=$data
bin/brokerctl ping --wait 10s

for workload in agents pipelined paced locks contended tokens state; do
  go tool pprof -proto -seconds 8 -output "$data/$workload.profile" "http://$address/debug/pprof/profile" > /dev/null 2>&1 &
  profile=$!
  bin/brokerctl bench --workloads "$workload" --seconds 10
  wait "$profile"
done
go tool pprof -proto "$data"/*.profile > cmd/brokerd/default.pgo 2> /dev/null
