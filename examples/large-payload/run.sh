#!/usr/bin/env bash
# A payload is larger than the session permits. brokerctl uploads it as an artifact, sends a message
# that refers to it, and says so.
. "$(dirname "$0")/../story.sh"

title "A payload that is too large for a message arrives as an artifact"
team builder critic
quietly operator session configure default --payload-limit 10240

scene "The builder sends a report of 12 KiB; the session permits 10 KiB"
jq -cjn '{report: ("ok: a test of the coverage report has passed\n" * 267)}' >coverage.json
as builder send critic "Coverage of the login" --type test_result --payload @coverage.json

scene "The critic finds the artifact in the message, and downloads it"
as critic claim --wait "$patience"
artifact=$(sed -n 's/^  artifacts *\([^ ]*\).*/\1/p' <<<"$said")
as critic artifact download "$artifact" --to received.json
cmp coverage.json received.json
as critic ack
as critic artifact list
check "the artifact has 12 KiB, and its hash is that of the file" \
  ".[0] | .size > 12000 and .sha256 == \"$(sha256sum coverage.json | cut -d ' ' -f 1)\"" artifact list

scene "A small payload travels in the message"
as builder send critic "Summary" --type test_result --payload '{"passed":267,"failed":0}'
as critic claim --wait "$patience"
as critic ack
check "there is still one artifact" 'length == 1' artifact list

the_end --type message.sent --type 'artifact.*' --type message.acked
