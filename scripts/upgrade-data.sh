#!/usr/bin/env bash
# scripts/upgrade-data.sh BROKERD BROKERCTL ARCHIVE
#
# Makes a data folder with the programs of an older version, which has every kind of item in every state, and packs it
# for TestUpgrade_* of internal/app: data/ is the folder after a SIGKILL, backup is one of it, answers.jsonl has the
# answers of the older program to the calls that the test repeats, and time is the clock at the end. It needs jq and Go.
set -euo pipefail
[ $# = 3 ] || { echo "usage: $0 BROKERD BROKERCTL ARCHIVE" >&2; exit 2; }
brokerd=$(realpath "$1") brokerctl=$(realpath "$2") archive=$(realpath -m "$3")

root=$(dirname "$(realpath "$0")")/..
work=$(mktemp -d /tmp/brokerd-upgrade.XXXXXX)
daemon=
stop() {
  [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
unset "${!BROKERD_@}"
export BROKERD_DATA=$work/data
(cd "$root" && go build -o "$work/numbered" ./scripts/numbered)
cd "$work"
start() {
  "$brokerd" >log 2>&1 &
  daemon=$!
  "$brokerctl" ping --wait 10s >/dev/null
}
end() {
  kill "$daemon"
  wait "$daemon" || true
}
start

# The folder is a restored backup, so its revisions have a gap.
"$brokerctl" agent register lead --role lead --lease 7d >/dev/null
"$brokerctl" --agent lead send lead "before the backup" >/dev/null
"$brokerctl" admin backup first >/dev/null
end
rm -rf data
"$brokerd" restore first >/dev/null 2>&1
rm first
start

# as AGENT COMMAND…: a command of an agent, whose output does not matter. id does the same and prints the id.
as() { "$brokerctl" --agent "$1" "${@:2}" >/dev/null; }
id() { "$brokerctl" --agent "$1" "${@:2}" -o json | jq -er '.decision.id // .handoff.id // .blocker.id // .vote.id // .id // .decision_id // .vote_id'; }
operator() { "$brokerctl" "$@" >/dev/null; }
# may COMMAND…: a command whose exit code does not matter.
may() { "$@" || true; }

for name in lead:lead overseer:overseer builder-1:builder builder-2:builder critic-1:critic watcher:watcher gone:builder; do
  operator agent register "${name%:*}" --role "${name#*:}" --lease 7d --capability go --label team=red
done
operator session configure --send-rate 0 --description "made for a test of an upgrade"
as lead agent heartbeat --status active
as builder-1 agent heartbeat --status active --activity "reads the code"
as builder-2 agent heartbeat --status degraded --reason "the disk is slow"
as builder-1 agent checkpoint t1 --data '{"step":"tests"}'
as critic-1 agent heartbeat --status idle
as watcher agent heartbeat --status idle
operator agent halt watcher

# Messages, in every state of a delivery.
as builder-1 channel subscribe general
operator channel configure general --default-ttl 7d
as lead send builder-1 "pending" --body "text" --payload '{"a":[1,2,{"b":null}]}' --label k=v --file a.go:42
as lead send builder-2 "claimed"
as builder-2 claim --for 12h
as lead send builder-2 "delayed" --delay 30d
as lead send builder-2 "first of a key" --ordering-key key
as lead send builder-2 "blocked by its key" --ordering-key key
as lead send critic-1 "acknowledged"
as critic-1 claim
as critic-1 ack
as lead send critic-1 "dead" --max-attempts 1
as critic-1 claim
as critic-1 nack --error "it failed"
as lead send critic-1 "redelivered later"
as critic-1 claim
as critic-1 nack --error "not yet" --delay 12h
as lead send critic-1 "expired" --ttl 1s
as lead message cancel "$(id lead send critic-1 "cancelled" --thread talk)"
as lead send role:builder "for a role"
as lead send channel:general "for a channel"
as lead send everyone "for everyone" --priority low
as builder-1 send lead "question" --requires-response --thread talk
as lead send gone "to a dead agent"
operator agent deregister gone

# Copies of channels, of which one agent has finished its own, and a queue of a channel.
as builder-2 channel subscribe general
as critic-1 channel subscribe general
both=$(id lead send channel:general "for two subscribers")
as builder-2 ack "$both"
as lead send channel:general "for one subscriber" --one
as lead send 'builder-*' "for some agents"

# Mail that arrives again, and a producer whose numbers the broker knows.
as lead send watcher "arrives again" --resend-after 12h
./numbered lead source watcher "number 1" "number 2" "number 3"

# Questions: answered, ended without an answer, with a reply that a call has received, and one that a call still awaits.
waiting() { "$brokerctl" --agent lead call MessageService/ListMessages '{"box":"INBOX"}' | jq -er ".items[].message | select(.subject == \"$1\") | .id"; }
question=$(id builder-1 send lead "answered" --requires-response)
as lead reply "$question" "yes"
question=$(id builder-1 send lead "withdrawn" --requires-response)
as builder-1 message cancel "$question"
may as builder-1 ask lead "asked" --wait 1m &
asker=$!
until asked=$(waiting asked); do :; done
as lead reply "$asked" "yes"
wait "$asker"
may as builder-1 ask lead "awaited" --wait 1h 2>/dev/null &
until waiting awaited >/dev/null; do :; done

# Messages of which retention has removed all but the events.
operator session create pruned
"$brokerctl" --session pruned agent register a >/dev/null
"$brokerctl" --session pruned --agent a send a "removed" >/dev/null
"$brokerctl" --session pruned --agent a claim >/dev/null
"$brokerctl" --session pruned --agent a ack >/dev/null
"$brokerctl" --session pruned --agent a send a "kept" >/dev/null

# Locks and tokens: held, shared, by a glob, waiting.
as builder-1 lock acquire src/a.go lib/ --for 7d --reason "refactoring"
as builder-2 lock acquire 'docs/*.md' --shared --for 7d
may as builder-2 lock acquire src/a.go --keep --wait 10ms
as builder-1 token acquire review login --for 7d
may as critic-1 token acquire review login --keep --wait 10ms
as builder-1 token acquire test_run all --for 7d
as builder-1 token release test_run all

# State: every type, an owner, a document, a deleted key, an expiry.
as lead state put text hello
as lead state put text "hello again"
as lead state put number 3 --type integer --own
as lead state put flag true --type boolean --ttl 300d
as lead state put object '{"list":[1,2]}' --type json --namespace plan
as builder-1 state append journal "first entry"
as builder-2 state append journal "second entry"
as lead state put removed x
as lead state delete removed

# Tasks in every state.
as lead task create "ready" --id ready --role builder --label area=api
as lead task create "waiting" --id waiting --depends-on ready
as lead task create "claimed" --id claimed --assignee builder-1
as builder-1 task claim claimed
as lead task create "blocked" --id blocked --capability go
as builder-1 task claim blocked --further
as builder-1 task block blocked --reason "no access"
as lead task create "done" --id done --description "text"
as builder-2 task claim done
as builder-2 task complete done --result "merged"
as lead task create "failed" --id failed --max-attempts 1
as builder-2 task claim failed
as builder-2 task fail failed --error "tests fail"
as lead task create "cancelled" --id cancelled --parent ready
as lead task cancel cancelled --reason "new design"
as lead task create "tried again later" --id later
as builder-2 task claim later
as builder-2 task fail later --error "once more"

# Decisions in every state.
d() { id builder-1 decision open "$@" --body text; }
d lead "open" --verdict yes --verdict no >/dev/null
revising=$(d lead "revising" --kind review --scope a --file a.go)
as lead decision decide "$revising" revise "Line 42" --feedback "major: a.go:42: wrong name"
escalated=$(d lead "escalated" --kind review --scope b --max-rounds 1)
as lead decision decide "$escalated" revise "no"
decided=$(d lead "decided" --verdict yes --verdict no)
as lead decision decide "$decided" yes "simple"
as builder-1 decision cancel "$(d lead "cancelled" --verdict yes --verdict no)" "not needed"

# Handoffs in every state.
h() { id lead handoff create builder-2 "$@" --background "why" --check "tests pass" --next "deploy"; }
h "pending" >/dev/null
as builder-2 handoff accept "$(h "accepted")"
as builder-2 handoff reject "$(h "rejected")" "no time"
as lead handoff cancel "$(h "cancelled")"

# Blockers in every state.
r() { id builder-2 blocker raise "$@" --to lead; }
r "open" --severity high >/dev/null
as lead blocker ack "$(r "acknowledged")" "I look"
as lead blocker resolve "$(r "resolved")" "done"

# Votes in every state and with every outcome.
v() { id lead vote open "$@" --to builder-1 --to builder-2 --deadline 300d; }
open=$(v "open" a b)
as builder-1 vote cast "$open" a --reason "short"
closed=$(v "decided" a b)
as builder-1 vote cast "$closed" a
as builder-2 vote cast "$closed" a
tied=$(v "tied" a b)
as builder-1 vote cast "$tied" a
as builder-2 vote cast "$tied" b
as lead vote close "$(v "no quorum" a b --quorum 2)"

# Artifacts, types, credentials, events, sessions.
echo one >file
as builder-1 artifact upload file reports/a.txt --description "a report" --label k=v
echo two >file
as builder-2 artifact upload file reports/a.txt --announce
as builder-1 artifact upload file removed.txt
as builder-1 artifact delete removed.txt
as lead type register deploy_finished --title "A deployment is finished" --schema '{"required":["host"]}' --alias deployed
as lead send builder-1 "with a type" --type deploy_finished --payload '{"host":"a"}'
operator credential issue agent builder-1 --role builder
operator credential issue observer --any-session --ttl 300d
operator credential issue observer --ttl 1s
operator credential revoke "$("$brokerctl" credential issue operator -o json | jq -er .credential.id)"
as builder-1 event publish build.finished "All green" --details '{"n":1}' --severity warning
operator session create closed --description "over"
"$brokerctl" --session closed agent register a >/dev/null
"$brokerctl" --session closed --agent a send a "left behind" >/dev/null
operator session close closed
operator session create other

sleep 3 # for what has a time to live of 1 s
"$brokerctl" --session pruned admin prune --older-than 1s --kind messages >/dev/null

# Mail of an agent that is read, only delivered, and unread.
operator agent register reader --role reader --lease 7d
as reader agent heartbeat --status idle
read=$(id lead send reader "read")
as reader call MessageService/ListMessages '{"box":"INBOX","ids":["'"$read"'"],"mark_read":true}'
delivered=$(id lead send reader "delivered")
as reader receive
unread=$(id lead send reader "unread")

# A clean stop copies the write-ahead log into the database. What follows is in the log alone.
end
start
may as builder-1 ask lead "awaited" --wait 1h 2>/dev/null & # the call has ended with the broker
as lead send builder-1 "after a restart"
as lead task create "created after a restart" --id last

# Mail that was accepted, is offered, and was returned, if the version has offers. Without evidence, an offer is
# returned after a minute.
operator agent register model --role reader --lease 7d
as model agent heartbeat --status idle
offer() { may as model call MessageService/OfferMessages '{"way":"PROMPT","harness":"session","mark":"'"$1"'"}' 2>/dev/null; }
settle() { may as model call MessageService/SettleOffers '{"marks":["'"$1"'"],'"$2"'}' 2>/dev/null; }
accepted=$(id lead send model "accepted")
offer mark-accepted
settle mark-accepted '"accepted":true'
offered=$(id lead send model "offered")
offer mark-offered
returned=$(id lead send model "returned")
offer mark-returned
settle mark-returned '"returned":"the session ended"'

# Every message of the session, with its deliveries, and everything that lists have.
restored=1000000000010 # the restore has left a gap below
last=$("$brokerctl" --agent lead call EventService/ListEvents '{"page_size":1,"newest_first":true}' | jq -er '.events[0].revision')
calls() {
  cat <<CALLS
lead AgentService/ListAgents {"page_size":1000}
lead ArtifactService/ListArtifacts {"page_size":1000}
lead BlockerService/ListBlockers {"page_size":1000}
lead CatalogService/ListMessageTypes {"page_size":1000}
lead ChannelService/ListChannels {"page_size":1000}
lead DecisionService/ListDecisions {"page_size":1000}
lead HandoffService/ListHandoffs {"page_size":1000}
lead LockService/ListLocks {"page_size":1000}
lead SessionService/ListSessions {"page_size":1000}
lead StateService/ListState {"page_size":1000,"values":true}
lead TaskService/ListTasks {"page_size":1000}
lead TokenService/ListTokens {"page_size":1000}
lead VoteService/ListVotes {"page_size":1000}
reader MessageService/ListMessages {"box":"INBOX"}
model MessageService/ListMessages {"box":"INBOX"}
lead MessageService/GetMessage {"id":"$read"}
lead MessageService/GetMessage {"id":"$delivered"}
lead MessageService/GetMessage {"id":"$unread"}
lead MessageService/GetMessage {"id":"$accepted"}
lead MessageService/GetMessage {"id":"$offered"}
lead MessageService/GetMessage {"id":"$returned"}
lead EventService/ListEvents {"after_revision":$restored,"until_revision":$last,"page_size":1000}
lead MessageService/ListMailboxes {}
lead MessageService/ListThreads {}
lead MessageService/ListDeadLetters {}
CALLS
  for name in lead builder-1 builder-2 critic-1 watcher; do
    echo "$name" 'MessageService/ListMessages {"box":"INBOX"}'
    echo "$name" 'MessageService/GetInboxSummary {}'
  done
  "$brokerctl" --agent lead call EventService/ListEvents \
    "{\"after_revision\":$restored,\"page_size\":1000,\"filter\":{\"types\":[\"message.sent\"]}}" |
    jq -r '.events[] | "lead MessageService/GetMessage {\"id\":\"\(.revision)\"}"'
}
answer() {
  while read -r agent method request; do
    "$brokerctl" ${agent:+--agent "$agent"} call "$method" "$request" |
      jq -c --arg agent "$agent" --arg method "$method" --argjson request "$request" \
        '{$agent, $method, $request, answer: .}'
  done
}
calls >requests
answer <requests >/dev/null # the first time, a list may change what it shows
answer <requests >answers.jsonl
"$brokerctl" admin backup backup >/dev/null

date -u +%Y-%m-%dT%H:%M:%SZ >time
kill -KILL "$daemon"
wait "$daemon" 2>/dev/null || true
daemon=
rm -f data/brokerd.sock data/brokerd.lock data/brokerd.db-shm
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$work" -cf - data backup answers.jsonl time | gzip -9n >"$archive"
ls -l "$archive"
