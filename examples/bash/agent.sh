#!/usr/bin/env bash
# An agent of brokerd in bash: runs a command for each message, until none has come for a minute.
# usage: agent.sh NAME ROLE COMMAND [ARGUMENT...]     the command gets the claim as JSON on its standard input
set -u
export BROKERD_AGENT=$1
brokerctl agent register "$1" --role "$2" >/dev/null || exit
shift 2

# Ends the script with an exit code; 4 says that nothing came in time, which is a good end.
end() {
  [ "$1" = 4 ] || exit "$1"
  brokerctl agent heartbeat --status stopped >/dev/null
  exit
}

# After a kill, the first claim is the one that the agent held.
# The wait is longer than the delay of a retry, so that the agent also takes the retries.
while claim=$(brokerctl claim --wait "${WAIT:-1m}" -o json) || end $?; do
  if "$@" <<<"$claim"; then brokerctl ack; else brokerctl nack --error "$1: exit code $?"; fi
done
