package broker_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// many is more messages than two pages of the backlog.
const many = 450

// pageFailed is what the daemon logs when a page of the backlog fails. It tries again when the
// clock has advanced by a second.
const pageFailed = "a page of the backlog could not be written; trying again"

// fill sends many messages to an agent, with all that mail can wait for.
func (a *agent) fill(name string, w *world) []*pb.SendResult {
	a.Helper()
	messages := make([]*pb.Message, many)
	for i := range messages {
		messages[i] = to(name, subject(fmt.Sprint(i)), priority(1+int32(i%9)))
		switch i % 5 {
		case 1:
			messages[i].OrderingKey = fmt.Sprint("key", i%20)
		case 2:
			messages[i].NotBefore = w.now(time.Hour)
		}
	}
	var sent []*pb.SendResult
	for batch := range slices.Chunk(messages, 50) {
		sent = append(sent, a.sendAll(batch...)...)
	}
	return sent
}

// breakAfter makes the daemon fail at changes of the deliveries in an agent's mailbox, after some
// of them.
func (w *world) breakAfter(column, name string, changes int) {
	w.Helper()
	w.breakWhen(column, fmt.Sprintf(`OLD.mailbox = (SELECT id FROM mailboxes WHERE kind = 1 AND name = '%s')`, name), changes)
}

// breakWhen makes the daemon fail at changes of deliveries for which a condition is true, after some
// of them.
func (w *world) breakWhen(column, condition string, changes int) {
	w.Helper()
	w.sql(`CREATE TABLE changed (message INTEGER)`, fmt.Sprintf(`
		CREATE TRIGGER breaks BEFORE UPDATE OF %s ON deliveries
		WHEN %s
		BEGIN
			SELECT RAISE(ABORT, 'broken') WHERE (SELECT COUNT(*) FROM changed) >= %d;
			INSERT INTO changed VALUES (OLD.message);
		END`, column, condition, changes))
}

func (w *world) mend() {
	w.Helper()
	w.sql(`DROP TRIGGER breaks`, `DROP TABLE changed`)
}

// count returns how many deliveries of messages are in a state.
func (a *agent) count(sent []*pb.SendResult, state pb.DeliveryState) int {
	a.Helper()
	n := 0
	for _, r := range sent {
		if a.state(r.Id) == state {
			n++
		}
	}
	return n
}

// awaitBuried returns once the event says that an agent's mail is dead-lettered, and checks that
// all of it is.
func (w *world) awaitBuried(sent []*pb.SendResult) {
	w.Helper()
	w.await("the mail is dead-lettered", func() bool { return len(w.Root().Events("message.dead")) > 0 })
	events := w.Root().Events("message.dead")
	want(w, "events", len(events), 1)
	want(w, "event", events[0].Summary, fmt.Sprintf("a deregistered: %d unfinished messages became dead letters", len(sent)))
	want(w, "dead letters", w.operator().count(sent, dead), len(sent))
	d := w.operator().delivery(sent[0].Id)
	want(w, "error", d.History[0].Error, "AGENT_GONE: done")
}

func TestDeregister_MailOfManyPagesIsDeadLetteredWithOneEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	sent := lead.fill("a", w)
	a.claim(5)
	a.deregister()
	w.awaitBuried(sent)
}

func TestDeregister_DeadLetteringResumesAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	sent := lead.fill("a", w)
	w.breakAfter("state", "a", 300)
	a.deregister()
	w.awaitLog(pageFailed)
	want(t, "dead letters of the first page", lead.count(sent, dead), 200)
	w.Check()
	w.mend()
	w.Restart()
	w.awaitBuried(sent)
}

func TestDeregister_RegisteringAgainAtOnceBringsTheMailboxBackEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	sent := lead.fill("a", w)
	a.deregister()
	a.Register("builder")
	want(t, "claims", len(a.claim(5)), 0)
	items, _ := a.receive(&pb.ReceiveRequest{})
	want(t, "received", len(items), 0)
	w.awaitBuried(sent)
	fresh := lead.send(to("a"))
	want(t, "new mail", a.claim1().Message.Id, fresh.Id)
	a.ack(fresh.Id)
	want(t, "redriven", a.redrive(sent[0].Id), 1)
	want(t, "message", a.claim1().Message.Id, sent[0].Id)
}

func TestDeregister_ClosingTheSessionEndsTheDeadLettering(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	apptest.Must(t, o.CreateSession,
		&pb.CreateSessionRequest{Name: "other", Settings: &pb.SessionSettings{SendRate: new(0.0)}})
	lead, a := w.in("other", "lead"), w.in("other", "a")
	lead.Register("")
	a.Register("builder")
	sent := lead.fill("a", w)
	w.breakAfter("state", "a", 200)
	a.deregister()
	w.awaitLog(pageFailed)
	w.mend()
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "other"})
	want(t, "departures", w.number(`SELECT COUNT(*) FROM departures`), 0)
	w.awaitClosed()
	reader := w.in("other", "")
	want(t, "dead letters", reader.count(sent, dead), 200)
	want(t, "cancelled", reader.count(sent, cancelled), len(sent)-200)
}

// wantStrict claims messages and checks that each has the priority of the one before it, or a lower
// one.
func (w *world) wantStrict(a *agent, n int) {
	w.Helper()
	last := int32(10)
	for i := range n {
		c := a.claim1()
		if p := c.Message.Priority; p > last {
			w.Fatalf("claim %d has priority %d after one of %d", i, p, last)
		} else {
			last = p
		}
		a.ack(c.ClaimId)
	}
}

func TestOrder_ChangedAgeingRanksManyPagesAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for i := range int32(9) {
		var batch []*pb.Message
		for range many / 9 {
			batch = append(batch, to("a", priority(1+i)))
		}
		a.sendAll(batch...)
		w.Clock.Advance(10 * time.Minute)
	}
	w.Root().Configure(&pb.SessionSettings{Ageing: durationpb.New(0)})
	w.awaitRanked()
	w.wantStrict(a, many)
}

// awaitRanked returns once every unfinished delivery has a rank without ageing.
func (w *world) awaitRanked() {
	w.Helper()
	w.awaitNone(`SELECT COUNT(*) FROM reranks`)
	want(w, "old ranks", w.number(`SELECT COUNT(*) FROM deliveries WHERE rank > 9 AND state <= 4`), 0)
}

func TestOrder_WhileRanksAreMixedEveryMessageIsClaimedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	c := a.taker(&pb.ClaimOpen{Types: []string{"wanted"}})
	sent := lead.fill("a", w)
	w.breakAfter("rank", "a", 300)
	w.Root().Configure(&pb.SessionSettings{Ageing: durationpb.New(0)})
	w.awaitLog(pageFailed)
	lead.send(to("a", kind("wanted"), subject("found")))
	found := c.take(1)
	wantList(t, "a filtered consumer", subjectsOf(found), "found")
	c.ack(found...)
	claimed := map[string]bool{}
	take := func(most int32) int {
		got := a.claim(most)
		for _, m := range got {
			if claimed[m.Message.Id] {
				t.Fatalf("%s was claimed twice", m.Message.Id)
			}
			claimed[m.Message.Id] = true
			a.ack(m.ClaimId)
		}
		return len(got)
	}
	want(t, "claims", take(100)+take(100), 200)
	w.mend()
	w.Restart()
	w.awaitRanked()
	w.Clock.Advance(time.Hour)
	for take(100) > 0 {
	}
	want(t, "claimed", len(claimed), len(sent))
}

func TestConfigure_AnotherSettingChangesNoRank(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	w.agent("a", "")
	lead.send(to("a"))
	w.breakAfter("rank", "a", 0)
	w.Root().Configure(&pb.SessionSettings{SendBurst: new(int32(7)), BreakerFailures: new(int32)})
	w.mend()
}
