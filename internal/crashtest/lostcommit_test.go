package crashtest_test

import (
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// The answer to the commit of a message is lost. Whether the commit has reached the server, and whether the daemon finds that
// out or is killed before, the sender repeats the call under its request id, or the message under its number, and the message
// is there once.
func TestLostCommit_ARepeatedMessageIsThereOnce(t *testing.T) {
	t.Parallel()
	program := processtest.Build(t)
	for name, c := range map[string]struct{ arrives, killed bool }{
		"the daemon finds that it was made":     {arrives: true},
		"the daemon finds that it was not made": {},
		"the daemon is killed":                  {arrives: true, killed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := postgrestest.Own(t)
			proxy := postgrestest.NewProxy(t, server.URL("postgres"))
			d := newDaemon(t, program)
			d.Store = proxy.URL
			testkit.NoError(t, d.start(t.Context()))
			testkit.NoError(t, register(t.Context(), d))
			ctx := as(t.Context(), "writer-1")
			byID := &pb.SendMessagesRequest{RequestId: requestID(), Messages: []*pb.Message{{Target: toAgent("reader"), Subject: "by id"}}}
			byNumber := &pb.SendRequest{Producer: "p", FirstNumber: 1, Messages: []*pb.Message{{Target: toAgent("reader"), Subject: "by number"}}}
			unary := func() ([]*pb.SendResult, error) {
				answer, err := d.messages.SendMessages(ctx, byID)
				return answer.GetResults(), err
			}
			streamed := func() ([]*pb.SendResult, error) {
				stream, err := d.messages.Send(ctx)
				if err != nil {
					return nil, err
				}
				if err := stream.Send(byNumber); err != nil {
					return nil, err
				}
				answer, err := stream.Recv()
				if err != nil {
					return nil, err
				}
				_ = stream.CloseSend()
				return taken(answer.GetResults())
			}
			for what, send := range map[string]func() ([]*pb.SendResult, error){"by id": unary, "by number": streamed} {
				lost := proxy.CutAtCommit(c.arrives, what)
				if c.killed {
					proxy.Close()
				}
				answered := make(chan error, 1)
				var first []*pb.SendResult
				go func() {
					var err error
					first, err = send()
					answered <- err
				}()
				<-lost
				if c.killed {
					d.Kill()
				}
				err := <-answered
				// A commit that was not made is made again if nothing of its transaction was sent before.
				confirmed := err == nil
				if !confirmed && (!cut(err) || c.arrives && !c.killed) || confirmed && c.killed {
					t.Errorf("%s: the first call is answered with %v, %v", what, first, err)
				}
				if c.killed {
					proxy = postgrestest.NewProxy(t, server.URL("postgres"))
					t.Cleanup(d.kill) // the proxy waits for its end
					d.Store = proxy.URL
					testkit.NoError(t, d.start(t.Context()))
				}
				again, err := send()
				testkit.NoError(t, err)
				if len(again) != 1 || again[0].GetRevision() == 0 || again[0].GetDuplicate() != (c.arrives || confirmed) {
					t.Errorf("%s: the second call is answered with %v", what, again)
				}
				if len(first) == 1 && first[0].GetId() != again[0].GetId() {
					t.Errorf("%s: the calls are answered with %v and %v", what, first, again)
				}
			}
			truth, err := readTruth(t.Context(), d)
			testkit.NoError(t, err)
			subjects := map[string]int{}
			for _, m := range truth.messages {
				subjects[m.GetSubject()]++
			}
			if len(subjects) != 2 || subjects["by id"] != 1 || subjects["by number"] != 1 {
				t.Errorf("the broker has %v", subjects)
			}
		})
	}
}
