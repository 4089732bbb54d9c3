package broker_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A consumer's max_bytes ends what it is given once it holds as much: the last message may go beyond it, and no other.
func TestClaimStream_HoldsNoMoreOnceItsBytesAreReached(t *testing.T) {
	t.Parallel()
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

// The windows of HTTP/2 hold some messages of a stream that its client does not read. Of the others, the
// broker grants no more than it may hold.
func TestClaimStream_UnreadOneIsGrantedLittle(t *testing.T) {
	t.Parallel()
	const (
		messages = 100
		size     = 60 << 10
		// The client's window, what the server's transport takes from a call, and what the broker holds, each with a
		// message that goes beyond it.
		most = (64<<10+64<<10+256<<10)/size + 3
	)
	w := newWorld(t)
	a, operator := w.agent("a", ""), w.operator()
	for range messages / 10 {
		batch := make([]*pb.Message, 10)
		for i := range batch {
			batch[i] = to("a", func(m *pb.Message) { m.Body = strings.Repeat("x", size) })
		}
		a.sendAll(batch...)
	}
	conn, err := grpc.NewClient(w.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(16<<20))
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := pb.NewMessageServiceClient(conn).Claim(metadata.AppendToOutgoingContext(a.Ctx, "brokerd-agent", "a"))
	apptest.NoError(t, err)
	c := &taker{t: t, stream: stream}
	c.put(&pb.ClaimRequest{Open: &pb.ClaimOpen{MaxInFlight: 1000, MaxBytes: 64 << 20}})
	if c.recv().GetOpened() == nil {
		t.Fatal("the first frame is not opened")
	}
	for range 20 { // each takes its way through the writer, and so through dispatch
		a.send(to("a"))
		if n := int(operator.status().Claimed); n > most {
			t.Fatalf("%d messages are claimed by a stream that is not read, want at most %d", n, most)
		}
	}
	c.take(messages + 20)
	if n := int(operator.status().Claimed); n != messages+20 {
		t.Errorf("%d messages are claimed after reading, want all", n)
	}
}
