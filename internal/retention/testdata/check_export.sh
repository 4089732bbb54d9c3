#!/usr/bin/env bash
# Compares the export of a session in the folder $1 with what standard input says of the database: one line "id revision archived state"
# a message, an empty line, and the revisions of the events that are still there. Needs nothing but jq and sha256sum.
set -euo pipefail
cd "$1"

fail() { printf '%s\n' "$@" >&2; exit 1; }

jq -r '.files[] | "\(.sha256)  \(.name)"' manifest.json | sha256sum --check --strict --quiet
jq -r '.files[] | "\(.lines) \(.bytes) \(.name)"' manifest.json | while read -r lines bytes name; do
  [ "$(wc -l <"$name")" = "$lines" ] || fail "$name does not have $lines lines"
  [ "$(wc -c <"$name")" = "$bytes" ] || fail "$name does not have $bytes bytes"
done

database=$(cat)
want=$(sed -n '1,/^$/p' <<<"$database" | sed '/^$/d' | sort)
got=$(jq -r '"\(.message.id) \(.message.revision) \(.archived) \(.deliveries[0].state)"' messages.jsonl | sort)
[ "$want" = "$got" ] || fail "messages in the database:" "$want" "messages in the export:" "$got"

want=$(sed '1,/^$/d' <<<"$database" | sort)
got=$(jq -r 'select(.archived | not) | .revision' events.jsonl | sort)
[ "$want" = "$got" ] || fail "events in the database:" "$want" "events in the export:" "$got"
[ -z "$(jq -r .revision events.jsonl | sort | uniq -d)" ] || fail "an event is in the export twice"

[ "$(jq -r 'select(.archived) | .message.payload.a' messages.jsonl | sort -u)" = 1 ] || fail "payloads are not nested JSON"
[ "$(jq -r .state session.json)" = CLOSED ] || fail "the session is not closed"
[ "$(jq -r .name agents.jsonl | paste -sd ' ')" = "builder lead" ] || fail "the agents are others"
[ "$(jq -r '.name + ":" + .subscribers[0]' channels.jsonl)" = news:builder ] || fail "the channels are others"
