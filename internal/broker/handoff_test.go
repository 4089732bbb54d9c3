package broker_test

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// waits opens a stream that has room for n claims, and returns once the broker knows that it has nothing else to look at.
func (a *agent) waits(lead *agent, n int32) *taker {
	a.Helper()
	c := a.taker(&pb.ClaimOpen{MaxInFlight: n, Mailboxes: []string{"role:builder", a.Name}})
	lead.send(to(a.Name, subject("probe")))
	c.settle(&pb.ClaimRequest{Acks: []string{c.take(1)[0].ClaimId}})
	return c
}

func TestHandOff_BatchThatIsRefusedGivesNothingAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	stream := w.agent("builder-1", "builder").waits(lead, 2)
	for range 3 {
		apptest.Refuses(t, lead.SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{
			toRole("builder", subject("never")), to("builder-1", subject("never")), to("nobody"),
		}}, codes.NotFound, "AGENT_NOT_FOUND")
	}
	a, b := lead.send(toRole("builder", subject("a"))), lead.send(to("builder-1", subject("b")))
	wantList(t, "claims", subjectsOf(stream.take(2)), "a", "b")
	lead.wantState(a.Id, claimed)
	lead.wantState(b.Id, claimed)
}

func TestHandOff_ConsumersTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	var streams []*taker
	for _, b := range w.agents("builder", "builder-1", "builder-2", "builder-3") {
		streams = append(streams, b.waits(lead, 4))
	}
	for i := range 9 {
		lead.send(toRole("builder", subject(fmt.Sprint(i))))
	}
	for i, s := range streams {
		wantList(t, fmt.Sprint("claims of ", i+1), subjectsOf(s.take(3)), fmt.Sprint(i), fmt.Sprint(i+3), fmt.Sprint(i+6))
	}
}

func TestHandOff_NobodyOvertakesWhatIsReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	stream := w.agent("builder-1", "builder").waits(lead, 1)
	var batch []*pb.Message
	for i := range 5 {
		batch = append(batch, toRole("builder", subject(fmt.Sprint(i))))
	}
	lead.sendAll(batch...)
	lead.send(toRole("builder", subject("urgent"), priority(10)))
	var order []string
	for range 6 {
		c := stream.take(1)[0]
		order = append(order, c.Message.Subject)
		stream.settle(&pb.ClaimRequest{Acks: []string{c.ClaimId}})
	}
	wantList(t, "order", order, "0", "urgent", "1", "2", "3", "4")
}

func TestHandOff_FollowerOfTheMailboxSeesWhatItsOwnStreamWasGiven(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder-1", "builder")
	stream := builder.waits(lead, 5)
	follow, err := builder.Receive(builder.Ctx, &pb.ReceiveRequest{Follow: true})
	apptest.NoError(t, err)
	_, err = follow.Recv() // it has looked at all there was
	apptest.NoError(t, err)
	lead.send(to("builder-1", subject("both")))
	wantList(t, "claims", subjectsOf(stream.take(1)), "both")
	page, err := follow.Recv()
	apptest.NoError(t, err)
	wantList(t, "mail", subjectsIn(page.Items), "both")
}
