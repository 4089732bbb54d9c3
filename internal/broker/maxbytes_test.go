package broker_test

import (
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
)

// A consumer's max_bytes ends what it is given once it holds as much: the last message may go beyond it, and no other.
func TestClaimStream_HoldsNoMoreOnceItsBytesAreReached(t *testing.T) {
	body := func(m *pb.Message) { m.Body = strings.Repeat("x", 400) }
	open := &pb.ClaimOpen{MaxInFlight: 100, MaxBytes: 1000}
	hold := func(c *taker) { // two are less than 1,000 bytes, the third goes beyond
		c.t.Helper()
		three := c.take(3)
		c.idle()
		c.ack(three[0])
		c.take(1)
		c.idle()
	}
	t.Run("of what is there", func(t *testing.T) {
		w := newWorld(t)
		a := w.agent("a", "")
		a.sendAll(to("a", body), to("a", body), to("a", body), to("a", body), to("a", body))
		hold(a.taker(open))
	})
	t.Run("of what comes", func(t *testing.T) {
		w := newWorld(t)
		a := w.agent("a", "")
		c := a.taker(open)
		for range 5 {
			a.send(to("a", body))
		}
		hold(c)
	})
}
