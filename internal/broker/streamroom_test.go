package broker_test

import (
	"fmt"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// The results of acks give a consumer capacity while dispatch runs. A message that dispatch had no
// capacity for must then not wait for another one to be sent. Acks and sends come at random times,
// so that they meet many dispatches.
func TestClaimStream_CapacityThatComesDuringADispatchIsUsed(t *testing.T) {
	t.Parallel()
	const consumers, senders, each = 12, 8, 100
	const messages = senders * each
	w := newWorld(t)
	done := make(chan error, consumers+senders)
	for i := range consumers {
		c := w.agent(fmt.Sprintf("builder-%d", i), "builder").taker(&pb.ClaimOpen{MaxInFlight: 2})
		go func() {
			for got := 0; got < messages; {
				r, err := c.stream.Recv()
				if err != nil {
					done <- fmt.Errorf("%d of %d messages: %w", got, messages, err)
					return
				}
				for _, claim := range r.GetDeliver().GetClaims() {
					if err := c.stream.Send(&pb.ClaimRequest{Acks: []string{claim.ClaimId}}); err != nil {
						done <- err
						return
					}
					got++
				}
			}
			done <- nil
		}()
	}
	for range senders {
		o := w.operator()
		go func() {
			for range each {
				if _, err := o.SendMessages(o.Ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{toEveryone()}}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range consumers + senders {
		apptest.NoError(t, <-done)
	}
}
