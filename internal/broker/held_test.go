package broker_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestClaim_ConsumerThatHoldsManyClaimsNoFurtherGivenMessageAndNoneOfATopic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	var ids []string
	for _, n := range []int{1000, 1} {
		batch := make([]*pb.Message, n)
		for i := range batch {
			batch[i] = to("builder")
		}
		for _, sent := range lead.sendAll(batch...) {
			ids = append(ids, sent.Id)
		}
	}
	claimed := builder.claimWith(&pb.ClaimMessagesRequest{Ids: ids[:1000]}).Claims
	for name, r := range map[string]*pb.ClaimMessagesRequest{
		"given":      {Ids: ids[1000:]},
		"of a topic": {Senders: []string{"lead"}, Max: 1},
	} {
		_, err := builder.ClaimMessages(builder.Ctx, r)
		t.Log(name)
		apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_CLAIMS")
	}
	want(t, "claims that are returned again", len(builder.claimWith(&pb.ClaimMessagesRequest{Ids: ids[:2]}).Claims), 2)
	builder.ack(claimed[0].ClaimId)
	builder.claimWith(&pb.ClaimMessagesRequest{Ids: ids[1000:]})
	another := builder.claimWith(&pb.ClaimMessagesRequest{Consumer: "another", Senders: []string{"lead"}, Max: 1})
	want(t, "claims of another consumer", len(another.Claims), 0)
}

// The writer reads a large content only for a claim that it gives.
func TestClaim_HasALargeContentWhicheverWayItIsGiven(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unbroken()
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	body := strings.Repeat("x", 100_000)
	whole := func(how string, claims []*pb.ClaimedMessage) {
		t.Helper()
		if len(claims) != 1 || claims[0].Message.Body != body {
			t.Fatalf("%s: %d claims, or not the whole body", how, len(claims))
		}
	}
	send := func() *pb.SendResult {
		return lead.send(to("builder", func(m *pb.Message) { m.Body, m.TaskId = body, "t1" }))
	}
	topic := &pb.ClaimMessagesRequest{TaskId: "t1", Max: 1}
	sent := send()
	given := &pb.ClaimMessagesRequest{Ids: []string{sent.Id}}
	whole("the next", builder.claim(1))
	whole("the same again", builder.claim(1))
	whole("held, of a topic", builder.claimWith(topic).Claims)
	whole("held, given", builder.claimWith(given).Claims)
	builder.ack(sent.Id)
	sent = send()
	whole("of a topic", builder.claimWith(topic).Claims)
	builder.ack(sent.Id)
	whole("given", builder.claimWith(&pb.ClaimMessagesRequest{Ids: []string{send().Id}}).Claims)
	s := builder.taker(&pb.ClaimOpen{MaxInFlight: 2})
	whole("resumed by a stream", s.opened.Resumed)
	send()
	whole("on a stream", s.take(1))
}

// An agent takes from 90 channels with 256 messages each, more than one function may read.
func TestClaim_ReadsAFewMessagesOfEachOfManyMailboxes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	for i := range 90 {
		channel := fmt.Sprint("c", i)
		builder.subscribe(channel)
		batch := make([]*pb.Message, 256)
		for j := range batch {
			batch[j] = toChannel(channel, one)
		}
		lead.sendAll(batch...)
	}
	seen := map[string]bool{}
	for _, c := range builder.claim(256) {
		seen[c.Mailbox] = true
	}
	want(t, "mailboxes of the oldest 256 messages", len(seen), 1)
}
