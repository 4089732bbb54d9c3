#!/usr/bin/env bash
# A worker in bash for brokerd's tasks: runs a command for each, until none has been ready for a minute.
# usage: tasks.sh NAME ROLE COMMAND [ARGUMENT...]     the command gets the claim as JSON on its standard input
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

# After a kill, the first claim is the task that the agent held.
while claim=$(brokerctl task claim --wait "${WAIT:-1m}" -o json) || end $?; do
  if result=$("$@" <<<"$claim"); then
    brokerctl task complete --result - <<<"$result"
  else
    brokerctl task fail --error "$1: exit code $?"
  fi
done
