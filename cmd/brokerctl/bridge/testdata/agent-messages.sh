#!/usr/bin/env bash
# An agent of the format agent-messages that only has files: bash, mv and jq.
# usage: agent-messages.sh DIR AGENT TO     "send FIRST LAST" and "look" on standard input say what to do
set -euo pipefail
shopt -s nullglob
agent=$2 to=$3
messages=$1/.agent-messages
inbox=$messages/inbox/$agent
mkdir -p "$inbox" "$messages/inbox/$to"
declare -A seen

send() {
  local number=$1 line
  while IFS= read -r line; do
    printf '%s\n' "$line" >"$inbox/.new"
    mv "$inbox/.new" "$messages/inbox/$to/$(printf 'msg_20260101_000000_%s_%06d.json' "$agent" "$number")"
    number=$((number + 1))
  done < <(jq -nc --arg from "$agent" --arg to "$to" --argjson first "$1" --argjson last "$2" '
    range($first; $last + 1) | {message_id: "msg_20260101_000000_\($from)_\(.)", protocol_version: "1.0",
      timestamp: "2026-01-01T00:00:00Z", from_agent: $from, to_agent: $to, message_type: "message", priority: "normal",
      payload: tostring, requires_response: false, status: "delivered"}')
}

# A folder can show a file and hide an earlier one that appears while it is read. So look reads the
# folder twice, and takes only files that are not after the last one of the first time. A file that
# it has acknowledged stays until the bridge moves it to archive/.
look() {
  local first=("$inbox"/*.json) second=("$inbox"/*.json) files=() file got text
  ((${#first[@]} == 0)) && return
  for file in "${second[@]}"; do
    [[ $file > ${first[-1]} || -n ${seen[$file]-} ]] || files+=("$file")
  done
  ((${#files[@]} == 0)) && return
  while IFS= read -r file && IFS= read -r got && IFS= read -r text; do
    printf '%s\n' "$text" >"$inbox/.new"
    mv "$inbox/.new" "$file"
    seen[$file]=1
    printf '%s\n' "$got"
  done < <(jq -r 'input_filename, "got \(.from_agent) \(.payload)", (.status = "acknowledged" | tojson)' "${files[@]}")
}

while read -r command first last; do
  case $command in
  send) send "$first" "$last" ;;
  look) look ;;
  esac
done
