package broker_test

import (
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestRedrive_OfAMailboxKeepsTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", "r"), w.operator()
	first, second := o.send(toRole("r", key("k"))), o.send(toRole("r", key("k")))
	a.kill()
	a.kill()
	out := apptest.Must(t, o.RedriveDeadLetters, &pb.RedriveDeadLettersRequest{Mailbox: "role:r"})
	want(t, "redriven", out.Redriven, 2)
	o.wantState(first.Id, pending)
	o.wantState(second.Id, blocked)
}

func TestRedrive_OfWhatIsNamedTwiceCountsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", "r"), w.operator()
	m := o.send(toRole("r"))
	a.kill()
	want(t, "redriven", o.redrive(m.Id, rev(m)), 1)
	w.Check()
}

func TestRedrive_TakesThePlaceThatTheAgeingGivesNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", "r"), w.operator()
	o.send(toRole("r", subject("low"), priority(1)))
	old := a.kill()
	w.Root().Configure(&pb.SessionSettings{Ageing: durationpb.New(0)})
	o.redrive(old.Message.Id)
	o.send(toRole("r", subject("high"), priority(9)))
	wantList(t, "order", subjectsOf(a.claim(2)), "high", "low")
}

func TestAck_OfMailThatWasNeverClaimedIsNamedByItsRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", "r"), w.operator()
	m := o.send(to("a"))
	wantList(t, "acked", a.ack(m.Id), rev(m))
}
