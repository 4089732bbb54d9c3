#!/usr/bin/env bash
# An architect hands its task over to a builder, with an artifact, notes, an acceptance checklist and
# a lock. The task and the lock pass to the builder in the moment in which it accepts.
. "$(dirname "$0")/../story.sh"

title "An architect hands a task over to a builder"
team lead architect builder

scene "The architect has worked on the task"
as lead task create "Log in" --id login
as architect task claim login
as architect lock acquire api/login.yaml
fence=$(number "fence ")
echo 'POST /login: {name, password} -> {token}' >login.yaml
as architect artifact upload login.yaml api/login.yaml --description "the interface"
as architect task update --progress 0.5 --note "the interface is complete"

scene "The architect hands it over"
begin architect handoff create builder "Build the login" --task login --transfer-task --fence "$fence" \
  --artifact api/login.yaml --work-done "The interface, reviewed by the lead." \
  --next "Store sessions" --issue "A token never ends" --question "How long does a session last?" \
  --check "POST /login returns a token" --check "A wrong password returns 401" --wait "$patience"

scene "The builder reads and accepts it"
as builder next --wait "$patience"
handoff=h-$(number h-)
as builder handoff accept "$handoff" "A session lasts 12 hours, the lead says."
finish architect
as operator task list
as operator lock list

scene "The builder finishes the task"
as builder handoff check "$handoff" 1
as builder handoff check "$handoff" 2
as builder handoff export "$handoff" login-handoff
cmp login.yaml login-handoff/artifacts/api/login.yaml
as builder task complete --result "merged"
as builder lock release api/login.yaml
check "the builder has completed the task" '.[0].task | .state == "done" and .holder == "builder"' task get login
check "the handoff is accepted, and both items are checked" \
  '.[0] | .state == "accepted" and (.checklist | all(.checked))' handoff get "$handoff"

the_end --type 'handoff.*' --type 'task.*' --type 'lock.*' --type 'artifact.*'
