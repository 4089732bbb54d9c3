#!/usr/bin/env bash
# A builder submits a plan; the lead rejects it with feedback and approves the next one. Then the
# lead shuts the team down: one builder accepts at once, the other one finishes its tests first.
. "$(dirname "$0")/../story.sh"

title "A plan is rejected and approved, and the team shuts down"
team lead builder-1 builder-2

scene "builder-1 submits a plan and waits for the verdict"
begin builder-1 plan submit login lead "Write a new password store" --wait "$patience"
as lead next --wait "$patience"
as lead plan reject login "Another store is one too many" --feedback "blocker: use the store of the package users"
finish 11 builder-1

scene "builder-1 submits another plan"
begin builder-1 plan submit login lead "Log in with the store of the package users" --wait "$patience"
as lead next --wait "$patience"
as lead plan approve login "Go ahead"
finish builder-1
as builder-1 next

scene "The work is done: the lead asks builder-2 to shut down, and builder-2 accepts"
begin lead agent shutdown builder-2 "The release is out" --wait "$patience"
as builder-2 next --wait "$patience"
shutdown=d-$(number d-)
as builder-2 decision accept "$shutdown" "My work is merged"
finish lead
as builder-2 agent deregister --reason "the release is out"

scene "builder-1 defers: its tests still run"
begin lead agent shutdown builder-1 "The release is out" --wait "$patience"
as builder-1 next --wait "$patience"
shutdown=d-$(number d-)
as builder-1 decision defer "$shutdown" 10m "The tests still run"
finish 10 lead
as builder-1 send lead "The tests have passed"
as lead claim --wait "$patience"
as lead ack

scene "The lead asks again"
begin lead agent shutdown builder-1 "The release is out" --wait "$patience"
as builder-1 next --wait "$patience"
shutdown=d-$(number d-)
as builder-1 decision accept "$shutdown"
finish lead
as builder-1 agent deregister --reason "the release is out"
as lead agent list
check "the lead is the last one" 'map(.name) == ["lead"]' agent list
check "both have accepted, builder-1 after it had deferred" \
  'map([.scope, .verdict]) == [["builder-1", "accept"], ["builder-1", "defer"], ["builder-2", "accept"]]' \
  decision list --all --kind shutdown

the_end --type 'decision.*' --type agent.deregistered
