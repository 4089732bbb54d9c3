#!/usr/bin/env bash
# A worker in bash for brokerd's tasks: runs a command for each, until none has been ready for a minute.
# usage: tasks.sh NAME ROLE COMMAND [ARGUMENT...]     the command gets the claim as JSON on its standard input
set -u
export BROKERD_AGENT=$1
brokerctl agent register "$1" --role "$2" >/dev/null || exit
shift 2

# After a kill, the first claim is the task that the agent held. Exit code 4: no task came in time.
while claim=$(brokerctl task claim --wait "${WAIT:-1m}" -o json) || exit $(($? == 4 ? 0 : $?)); do
  if result=$("$@" <<<"$claim"); then
    brokerctl task complete --result - <<<"$result"
  else
    brokerctl task fail --error "$1: exit code $?"
  fi
done
