#!/usr/bin/env bash
# A producer and a critic work in turns: submit, revise with feedback, submit again, approve. The
# token producer_critic is with the one whose turn it is. The producer is killed in the middle.
. "$(dirname "$0")/../story.sh"

title "A critic reviews a producer's work, and the producer is killed in the middle"
team producer critic

scene "The producer has the turn, submits its work and waits for the verdict"
as producer token acquire producer_critic login
begin producer review submit login critic "The login page" --file web/login.html --pass-token --wait "$patience"
until_event 1 decision.opened
as critic next --wait "$patience"
as critic token list

scene "The producer is killed while the critic reads"
kill_begun producer
as critic review revise login "Almost" --feedback "major: web/login.html:12: the page shows the password" \
  --feedback "note: web/login.html:30: a link to the sign-up page would help"

scene "The producer returns, and finds the verdict and its turn"
as producer agent register producer --role producer
as producer next
as producer review get login
as producer token list

scene "Round 2"
begin producer review submit login critic "The login page, password hidden" --file web/login.html --wait "$patience"
until_event 1 decision.resubmitted
as critic next --wait "$patience"
as critic review approve login "Good"
finish producer
check "the review took two rounds: revise, approve" \
  '[.[0].rounds[].verdict] == ["revise", "approve"]' review get login

the_end --type 'decision.*' --type token.passed
