package broker_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// crowd adds n registered agents of a role, without the calls.
func (w *world) crowd(role string, n int) {
	w.Helper()
	w.sql(fmt.Sprintf(`
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < %d)
INSERT INTO agents (session, name, role, incarnation, registered, instance, worktree, lease, display_name, description, status,
                    status_reason, activity, task_id, progress, registered_at, changed_at, last_seen_at, revision)
SELECT 1, '%s-' || n, '%s', 1, 1, '', '', 86400000000000, '', '', 0, '', '', '', 0, 1, 1, 1, 1 FROM numbers`, n, role, role))
}

func TestSend_RefusesMessagesWithMoreRecipientsThanACallMayHave(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.crowd("builder", 1000)
	var batch []*pb.Message
	for range 7 {
		batch = append(batch, toRole("builder", all))
	}
	lead.sendAll(batch...) // 7,000 copies, and 2,000 for 1,000 recipients
	for name, last := range map[string]*pb.Message{
		"all of a role":     toRole("builder", all),
		"the name for them": to("all_builder"),
		"everyone":          toEveryone(),
		"a pattern":         toPattern("builder-*"),
	} {
		t.Run(name, func(t *testing.T) {
			before := w.number(`SELECT count(*) FROM messages`)
			_, err := lead.SendMessages(lead.Ctx, &pb.SendMessagesRequest{Messages: append(batch[:7:7], last)})
			apptest.Refused(t, err, codes.InvalidArgument, "FANOUT_TOO_LARGE")
			want(t, "messages that were sent", w.number(`SELECT count(*) FROM messages`), before)
		})
	}
}

func TestSendStream_MessagesForManyDoNotCountTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(0))})
	lead := w.agent("lead", "lead")
	w.crowd("builder", 1000)
	r := &pb.SendRequest{}
	for range 10 {
		r.Messages = append(r.Messages, to("all_builders"))
	}
	for range 10 {
		r.Messages = append(r.Messages, toEveryone())
	}
	for _, result := range lead.sender().exchange(r) {
		if result.Error != nil || result.RecipientCount != 1000 {
			t.Fatal(result)
		}
	}
}

func TestSendStream_MessagesWithManyArtifactsDoNotCountTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agent("builder", "builder")
	m := to("builder")
	for i := range 150 {
		m.Artifacts = append(m.Artifacts, fmt.Sprint("a", i))
	}
	for _, result := range lead.sender().exchange(&pb.SendRequest{Messages: slices.Repeat([]*pb.Message{m}, 64)}) {
		if result.Error != nil {
			t.Fatal(result)
		}
	}
}

func TestSend_RefusesAMessageForMoreAgentsThanACallMayReach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.crowd("builder", 3334)
	apptest.Refused(t, lead.refused(toEveryone()), codes.InvalidArgument, "FANOUT_TOO_LARGE")
	results := lead.sender().exchange(&pb.SendRequest{Messages: []*pb.Message{toEveryone(), to("lead")}})
	want(t, "of the stream", results[0].GetError().GetReason(), "FANOUT_TOO_LARGE")
	want(t, "of the next message", results[1].GetError().GetReason(), "")
}

func TestRegister_RefusesAnAgentBeyondTheLimitOfASession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, last, more := w.agent("first", "lead"), w.agent("last", "lead"), w.in("default", "more")
	w.crowd("builder", 9998)
	apptest.Refuses(t, more.RegisterAgent, &pb.RegisterAgentRequest{}, codes.ResourceExhausted, "TOO_MANY_AGENTS")
	last.Register("lead")
	apptest.Refused(t, last.refused(toEveryone()), codes.InvalidArgument, "FANOUT_TOO_LARGE")
	first.deregister()
	more.Register("lead")
}

func TestReceive_CursorsOfAnAgentAreLimitedAndEndWithItsRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	for i := range 100 {
		a.receive(&pb.ReceiveRequest{Cursor: fmt.Sprint("c", i)})
	}
	a.receive(&pb.ReceiveRequest{Cursor: "c7"})
	stream, err := a.Receive(a.Ctx, &pb.ReceiveRequest{Cursor: "c100"})
	if err == nil {
		_, err = stream.Recv()
	}
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_CURSORS")
	w.agent("b", "builder").receive(&pb.ReceiveRequest{Cursor: "c100"})
	want(t, "cursors", w.number(`SELECT count(*) FROM cursors`), 101)
	a.deregister()
	want(t, "cursors of the other agent", w.number(`SELECT count(*) FROM cursors`), 1)
}
