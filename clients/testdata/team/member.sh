#!/usr/bin/env bash
# A member of the team in bash: works on messages and tasks until SIGTERM. BROKERD_AGENT is its name.
set -u
brokerctl agent register "$BROKERD_AGENT" --role worker > /dev/null || exit
brokerctl work --consumer member -- sh -c 'cat > /dev/null' > /dev/null &
brokerctl task work --resume -- sh -c 'cat > /dev/null' > /dev/null &
trap 'kill -TERM $(jobs -p)' TERM
wait # until the signal
wait # until both have ended
