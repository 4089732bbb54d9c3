package broker_test

import (
	"fmt"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// crowded is more agents than one function sends copies of a message to.
const crowded = 5000

// copiesFailed is what the daemon logs when copies of a message cannot be written.
const copiesFailed = "a page of the backlog failed; the broker tries again"

// breakCopies makes the daemon fail at copies of the messages of a type after some of them.
func (w *world) breakCopies(kind string, copies int) {
	w.Helper()
	w.sql(fmt.Sprintf(`
		CREATE TRIGGER breaks BEFORE INSERT ON deliveries
		WHEN (SELECT type FROM messages WHERE revision = NEW.message) = '%s'
		BEGIN
			SELECT RAISE(ABORT, 'broken') WHERE (SELECT COUNT(*) FROM deliveries WHERE message = NEW.message) >= %d;
		END`, kind, copies))
}

// copies returns how many copies there are of the messages of a type.
func (w *world) copies(kind, where string) int {
	w.Helper()
	return w.number(`SELECT COUNT(*) FROM deliveries WHERE ` + where +
		` AND message IN (SELECT revision FROM messages WHERE type = '` + kind + `')`)
}

// overdueQuestion lets the time for the response to a question pass.
func (w *world) overdueQuestion(lead *agent) *pb.SendResult {
	w.Helper()
	q := lead.send(to("builder", subject("ready?"), deadline(w.now(time.Minute))))
	w.Clock.Advance(time.Minute)
	w.awaitEvents("message.overdue", 1)
	return q
}

// overdueForMany has a question to the returned agent become overdue, of which many agents receive a
// notice, and waits until the copies fail.
func (w *world) overdueForMany() (builder *agent, question *pb.SendResult) {
	w.Helper()
	lead := w.agent("lead", "")
	builder = w.agent("builder", "builder")
	w.crowd("overseer", crowded)
	w.breakCopies("overdue", 2500)
	question = w.overdueQuestion(lead)
	w.awaitLog(copiesFailed)
	return builder, question
}

func TestNotify_EveryAgentOfALargeRoleReceivesTheNoticeAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, q := w.overdueForMany()
	want(t, "copies of the first pages", w.copies("overdue", "state = 9"), 2400)
	w.Check()
	w.sql(`DROP TRIGGER breaks`)
	w.Restart()
	w.awaitClosed()
	want(t, "messages", w.number(`SELECT COUNT(*) FROM messages WHERE type = 'overdue'`), 1)
	want(t, "copies", w.copies("overdue", "state = 9"), crowded)
	last := w.in("default", "overseer-999").inbox()
	wantList(t, "the last agent's notices", subjectsIn(last), "message "+itoa(q.Revision)+" of lead has had no response by 2026-01-02T03:05:05Z: ready?")
	builder.reply(q.Id, "yes")
	w.awaitClosed()
	want(t, "copies that are withdrawn", w.copies("overdue", "state IN (5, 8)"), crowded)
}

func TestNotify_CopiesThatHaveNotFollowedAMootNoticeDoNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	builder, q := w.overdueForMany()
	builder.reply(q.Id, "yes")
	w.sql(`DROP TRIGGER breaks`)
	w.Clock.Advance(time.Minute)
	w.awaitClosed()
	want(t, "copies", w.copies("overdue", "true"), 2400)
	want(t, "copies that are withdrawn", w.copies("overdue", "state = 8"), 2400)
}

func TestAnnounce_EverySubscriberOfManyReceivesTheEventAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, lead := w.agent("a", ""), w.agent("lead", "")
	a.subscribe("event/*")
	lead.subscribe("event/*")
	w.crowd("builder", crowded)
	w.sql(`INSERT INTO mailboxes (session, kind, name, waiting) SELECT 1, 1, name, 0 FROM agents WHERE role = 'builder'`,
		`INSERT INTO subscriptions (channel, agent) SELECT c.id, a.id FROM mailboxes c, mailboxes a
			WHERE c.kind = 3 AND c.name = 'event/*' AND a.kind = 1 AND a.Name LIKE 'builder-%'`)
	w.breakCopies("event", 2500)
	a.subscribe("general") // the broker reads the subscriptions again
	out := apptest.Must(t, lead.PublishEvent, &pb.PublishEventRequest{Type: "build.finished", Summary: "done"})
	want(t, "subscribers", int(out.Subscribers), crowded+1)
	w.awaitLog(copiesFailed)
	want(t, "copies of the first pages", w.copies("event", "state = 1"), 2400)
	w.sql(`DROP TRIGGER breaks`)
	w.Restart()
	w.awaitClosed()
	want(t, "copies", w.copies("event", "state = 1"), crowded+1)
	want(t, "copies for the agent that published the event", len(lead.inbox()), 0)
	wantList(t, "the last subscriber's events", subjectsIn(w.in("default", "builder-999").inbox()), "done")
	wantList(t, "the first subscriber's events", subjectsIn(a.inbox()), "done")
}

func TestAnnounce_AReaderThatIsFurtherReceivesACopyThatFollows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	z, lead := w.agent("z", ""), w.agent("lead", "")
	z.subscribe("event/*")
	w.crowd("builder", 1500)
	w.sql(`INSERT INTO mailboxes (session, kind, name, waiting) SELECT 1, 1, name, 0 FROM agents WHERE role = 'builder'`,
		`INSERT INTO subscriptions (channel, agent) SELECT c.id, a.id FROM mailboxes c, mailboxes a
			WHERE c.kind = 3 AND c.name = 'event/*' AND a.kind = 1 AND a.Name LIKE 'builder-%'`)
	w.breakCopies("event", 1200)
	z.subscribe("general")
	lead.publish(&pb.PublishEventRequest{Type: "build.finished", Summary: "done"})
	w.awaitLog(copiesFailed)
	lead.send(to("z", subject("later")))
	r := &pb.ReceiveRequest{Cursor: "c"}
	items, _ := z.receive(r)
	wantList(t, "before the copy", subjectsIn(items), "later")
	w.sql(`DROP TRIGGER breaks`)
	w.Clock.Advance(time.Minute)
	w.awaitClosed()
	items, _ = z.receive(r)
	wantList(t, "behind what it has read", subjectsIn(items), "done")
}
