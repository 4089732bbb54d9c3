#!/usr/bin/env bash
# An architect announces a decision to all builders, and follows which of them have acknowledged it.
. "$(dirname "$0")/../story.sh"

title "An architecture decision reaches all builders"
team architect builder-1 builder-2 builder-3

scene "The architect announces the decision: each builder receives a copy"
as architect send role:builder "Ids are UUIDv7" --all --type decision_announcement --thread adr-12 \
  --payload '{"decision":"Ids are UUIDv7","reason":"they sort by time"}'
decision=$(number "sent ")

scene "Two builders read and acknowledge it"
for builder in builder-1 builder-3; do
  as "$builder" claim --wait "$patience"
  as "$builder" ack
done

scene "Which builder has not acknowledged it yet?"
as architect message report "$decision"
check "2 of 3 have acknowledged it, and builder-2 has not seen it" \
  '(.[0].finished | length) == 2 and [.[0].waiting[].mailbox] == ["builder-2"]' message report "$decision"

scene "builder-2 returns to its terminal"
as builder-2 next
as builder-2 ack

scene "3 of 3"
as architect message report "$decision"
check "3 of 3 have acknowledged it" \
  '.[0].recipients == 3 and (.[0].finished | length) == 3' message report "$decision"

the_end --type message.sent --type message.acked
