#!/usr/bin/env bash
# Two builders agree on the interface between their parts: an offer, a counter-offer, and both
# confirm. The thread keeps the conversation together, and its outcome.
. "$(dirname "$0")/../story.sh"

title "Two builders agree on an interface contract"
team builder-1 builder-2

scene "builder-1 offers a contract"
as builder-1 send builder-2 "GET /users, pages by offset" --type interface_contract --thread users-api \
  --payload '{"path":"/users","paging":"offset"}'
as builder-2 claim --wait "$patience"

scene "builder-2 makes a counter-offer"
as builder-2 reply --ack --type interface_contract --subject "GET /users, pages by cursor" \
  --payload '{"path":"/users","paging":"cursor"}' "Rows are added while the user scrolls: offsets would skip some."
as builder-1 claim --wait "$patience"

scene "Both confirm"
as builder-1 reply --ack --type interface_contract --subject "Confirmed: GET /users, pages by cursor" \
  --payload '{"path":"/users","paging":"cursor","confirmed":true}' "I build it like this."
as builder-2 claim --wait "$patience"
as builder-2 reply --ack --type interface_contract --subject "Confirmed: GET /users, pages by cursor" \
  --payload '{"path":"/users","paging":"cursor","confirmed":true}' "So do I."
as builder-1 claim --wait "$patience"
as builder-1 ack
as builder-1 thread resolve users-api "GET /users, pages by cursor"

as operator thread list
check "both builders have confirmed" \
  '[.[].message | select(.payload.confirmed) | .sender] == ["builder-1", "builder-2"]' \
  message list --thread users-api

the_end --type message.sent --type thread.resolved
