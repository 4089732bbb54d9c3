package broker_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
)

// plant makes statements fail that the broker expects to succeed: changes of a table that match a
// condition.
func (w *world) plant(change, condition string) {
	w.Helper()
	w.sql(`CREATE TRIGGER planted BEFORE ` + change + ` WHEN ` + condition + ` BEGIN SELECT RAISE(ABORT, 'a planted defect'); END`)
}

// TestDefect_LateInASendFailsThatSendAlone plants a defect that shows after the first change of a
// send, while other agents send as well. Their messages are sent, each once.
func TestDefect_LateInASendFailsThatSendAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plant("INSERT ON messages", "NEW.type = 'planted'")
	target := w.agent("target", "")
	const senders, rounds = 4, 25
	var all sync.WaitGroup
	for n := range senders {
		s := w.agent("sender-"+strconv.Itoa(n), "").sender()
		all.Go(func() {
			for i := range rounds {
				s.put(&pb.SendRequest{Messages: []*pb.Message{to("target", subject(fmt.Sprint(n, i)))}})
				s.put(&pb.SendRequest{Messages: []*pb.Message{to("target", kind("planted"))}})
			}
			for i, r := range s.results(2 * rounds) {
				code := codes.OK
				if i%2 == 1 {
					code = codes.Internal
				}
				if got := codes.Code(r.GetError().GetCode()); got != code || r.GetError().GetRetryAfter() != nil {
					t.Errorf("result %d of sender %d: %v, want %v", i, n, r.Error, code)
				}
			}
			s.close()
		})
	}
	all.Wait()
	items, _ := target.receive(&pb.ReceiveRequest{})
	times := map[string]int{}
	for _, item := range items {
		times[item.Message.Subject]++
	}
	want(t, "messages", len(items), senders*rounds)
	want(t, "different messages", len(times), senders*rounds)
}

func TestDefect_LateInASettlementFailsItsFrameAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plant("INSERT ON events", "NEW.type = 'message.acked' AND NEW.source = 'unlucky'")
	lead := w.agent("lead", "")
	takers := map[string]*taker{}
	for _, name := range []string{"a", "unlucky", "b"} {
		takers[name] = w.agent(name, "").taker(&pb.ClaimOpen{MaxInFlight: 10})
		lead.send(to(name))
	}
	claims := map[string]string{}
	for name, s := range takers {
		claims[name] = s.take(1)[0].ClaimId
	}
	for name, s := range takers {
		s.put(&pb.ClaimRequest{Acks: []string{claims[name]}})
	}
	for name, s := range takers {
		code := codes.OK
		if name == "unlucky" {
			code = codes.Internal
		}
		want(t, "code of "+name, codes.Code(s.recv().GetResults().GetResults()[0].GetError().GetCode()), code)
	}
	results := takers["unlucky"].settle(&pb.ClaimRequest{Releases: []string{claims["unlucky"]}})
	want(t, "the claim is still held and can be released", codes.Code(results[0].GetError().GetCode()), codes.OK)
}
