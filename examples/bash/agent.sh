#!/usr/bin/env bash
# An agent of brokerd in bash: runs a command for each message, until nothing has come for a second.
# usage: agent.sh NAME ROLE COMMAND [ARGUMENT...]     the command gets the claim as JSON on its standard input
set -u
export BROKERD_AGENT=$1
brokerctl agent register "$1" --role "$2" >/dev/null || exit
shift 2

# What it held when it was killed comes first. Exit code 4: nothing was there.
while claim=$(brokerctl claim --wait 1s -o json) || exit $(($? == 4 ? 0 : $?)); do
  if "$@" <<<"$claim"; then brokerctl ack; else brokerctl nack --error "$1: exit code $?"; fi
done
