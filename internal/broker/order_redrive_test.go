package broker_test

import (
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// A redriven delivery is the oldest of its ordering key and yet waits for its turn.
func TestOrder_EndOfABlockedDeliveryLeavesTheTurnWhereItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, worker := w.agent("lead", "lead"), w.agent("worker", "")
	send := func() string { return lead.send(to("worker", key("key"))).Id }
	first, second, third := send(), send(), send()
	worker.nack(&pb.Nack{ClaimId: worker.claim1().ClaimId, Error: "hopeless", Fatal: true})
	lead.wantState(second, pending)
	want(t, "redriven", w.operator().redrive(first), 1)
	lead.wantState(first, blocked)

	want(t, "cancelled", lead.cancel(third).Cancelled, 1)
	lead.wantState(first, blocked)
	lead.wantState(second, pending)

	worker.ack(second)
	lead.wantState(first, pending)
}

func TestOrder_DeliveriesThatExpireTogetherPassTheTurnOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, worker := w.agent("lead", "lead"), w.agent("worker", "")
	for range 2 {
		lead.send(to("worker", key("key"), ttl(time.Minute)))
	}
	last := lead.send(to("worker", key("key"))).Id
	lead.wantState(last, blocked)
	w.Clock.Advance(time.Minute)
	w.awaitState(last, pending)
	want(t, "claims", len(worker.claim(5)), 1)
}
