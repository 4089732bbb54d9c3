#!/usr/bin/env bash
# An agent of the format maildir that only has files: bash, mv and jq.
# usage: maildir.sh DIR AGENT TO     "send FIRST LAST" and "look" on standard input say what to do
set -euo pipefail
shopt -s nullglob
agent=$2 to=$3
inbox=$1/messages/inbox/$agent outbox=$1/messages/outbox/$agent read=$1/read/$agent
mkdir -p "$inbox" "$outbox" "$read"

send() {
  local number=$1 line
  while IFS= read -r line; do
    printf '%s\n' "$line" >"$outbox/.new"
    mv "$outbox/.new" "$outbox/$(printf '20260101T000000Z-%s-%06d.json' "$to" "$number")"
    number=$((number + 1))
  done < <(jq -nc --arg from "$agent" --arg to "$to" --argjson first "$1" --argjson last "$2" '
    range($first; $last + 1) | {id: "\($from)-\(.)", timestamp: "2026-01-01T00:00:00Z", from: $from, to: $to,
      type: "message", body: tostring, priority: "normal"}')
}

# A folder can show a file and hide an earlier one that appears while it is read. So look reads the
# folder twice, and takes only files that are not after the last one of the first time.
look() {
  local first=("$inbox"/*.json) second=("$inbox"/*.json) files=() file
  ((${#first[@]} == 0)) && return
  for file in "${second[@]}"; do
    [[ $file > ${first[-1]} ]] || files+=("$file")
  done
  jq -r '"got \(.from) \(.body)"' "${files[@]}"
  mv -t "$read" "${files[@]}"
}

while read -r command first last; do
  case $command in
  send) send "$first" "$last" ;;
  look) look ;;
  esac
done
