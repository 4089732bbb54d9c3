#!/usr/bin/env bash
# An agent asks another agent for context and receives the answer to this very question. Then three
# agents append to one shared document at the same time, and no entry is lost.
. "$(dirname "$0")/../story.sh"

title "An agent asks for context, and three agents share it"
team architect builder-1 builder-2 builder-3

scene "builder-1 asks and waits; the architect answers"
begin builder-1 ask architect "How do we hash passwords?" --wait "$patience" \
  --type context_query --correlation auth-hash --payload '{"query":"password hashing"}'
as architect claim --wait "$patience"
as architect reply --ack "argon2id with 64 MiB" --type context_response --payload '{"answer":"argon2id"}'
finish builder-1
check "question and answer have the same correlation id" \
  '[.[].message | .type] == ["context_query", "context_response"]' message list --correlation auth-hash

scene "Three builders append to the shared document at once; the architect subscribes to it"
as architect channel subscribe event/context_updated
begin builder-1 state append auth "Passwords: argon2id with 64 MiB."
begin builder-2 state append auth "Sessions end after 12 hours."
begin builder-3 state append auth "At most 5 logins per minute."
finish builder-1 builder-2 builder-3

scene "The document, by author"
show 'sort_by(.author)[] | "\(.author): \(.text)"' state get auth
check "the document has one entry of each builder" \
  '[.[0][].author] | sort == ["builder-1", "builder-2", "builder-3"]' state get auth
check "the architect was notified of each entry" \
  '[.[].message.payload.source] | sort == ["builder-1", "builder-2", "builder-3"]' message list --channel event/context_updated

the_end --source builder-1 --source architect --type message.sent
