#!/usr/bin/env bash
# An agent of the format jsonl that only has files: bash, flock and jq.
# usage: jsonl.sh DIR AGENT TO     "send FIRST LAST" and "look" on standard input say what to do
set -euo pipefail
mailbox=$1/mailbox agent=$2 to=$3 seen=0
mkdir -p "$mailbox"
: >>"$mailbox/$agent.jsonl"

send() {
  local line
  while IFS= read -r line; do
    exec 9>>"$mailbox/$to.jsonl"
    flock 9
    printf '%s\n' "$line" >&9
    exec 9>&-
  done < <(jq -nc --arg from "$agent" --arg to "$to" --argjson first "$1" --argjson last "$2" '
    range($first; $last + 1) | {MessageId: "\($from)-\(.)", FromAgentId: $from, ToAgentId: $to, Type: "message",
      Content: tostring, Metadata: {}, Timestamp: "2026-01-01T00:00:00Z"}')
}

# A line without its end is not complete yet: read fails on it.
look() {
  local line
  exec 9<"$mailbox/$agent.jsonl"
  flock -s 9
  mapfile -t lines < <(n=0; while IFS= read -r line; do ((++n <= seen)) || printf '%s\n' "$line"; done <&9)
  exec 9<&-
  ((${#lines[@]} == 0)) && return
  printf '%s\n' "${lines[@]}" | jq -r '"got \(.FromAgentId) \(.Content)"'
  seen=$((seen + ${#lines[@]}))
}

while read -r command first last; do
  case $command in
  send) send "$first" "$last" ;;
  look) look ;;
  esac
done
