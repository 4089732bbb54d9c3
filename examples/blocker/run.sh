#!/usr/bin/env bash
# A builder is blocked. The lead does not react in time, so the broker notifies the next role, an
# architect who resolves the blocker. An orchestrator follows it all.
. "$(dirname "$0")/../story.sh"

title "A blocker is raised, escalated and resolved"
team lead architect builder orchestrator
quietly operator session configure default --escalate-to lead --escalate-to architect --blocker-escalation 3s
begin orchestrator event follow --after 0 --type BlockerEncountered --type blocker.escalated \
  --type blocker.acknowledged --type blocker.resolved --limit 4

scene "The builder cannot continue with its task; from now on, blockers escalate after 15 minutes"
quietly lead task create "Log in" --id login
quietly builder task claim login
as builder blocker raise "The test database refuses my password" --severity high --task login
blocker=b-$(number b-)
quietly operator session configure default --blocker-escalation 15m
begin builder blocker get "$blocker" --wait "$patience"

scene "The lead is away; after three seconds the broker notifies the architect"
until_event 1 blocker.escalated
as architect next --wait "$patience"
as architect blocker ack "$blocker" "creating an account"
as architect blocker resolve "$blocker" "the account builder exists"

scene "The builder has waited for this, and continues"
finish builder
as builder next
as builder task complete --result "merged"

scene "What the orchestrator has seen"
finish orchestrator
as orchestrator blocker list --all
check "the blocker was escalated once, resolved by the architect, and stopped the builder for three seconds or more" \
  '.[0] | .escalations == 1 and .resolved_by == "architect" and (.time_blocked | rtrimstr("s") | tonumber) >= 3' \
  blocker list --all

the_end --type 'blocker.*' --type 'task.*' --type message.sent
