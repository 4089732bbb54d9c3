package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// recipients are the mailboxes of an answer, in which nobody may have refused.
func recipients(t testing.TB, r *pb.SendResult) []string {
	t.Helper()
	var names []string
	for _, to := range r.Recipients {
		want(t, to.Mailbox, to.Outcome, pb.RecipientOutcome_RECIPIENT_OUTCOME_QUEUED)
		names = append(names, to.Mailbox)
	}
	want(t, "recipient_count", int(r.RecipientCount), len(names))
	want(t, "refused_count", r.RefusedCount, 0)
	return names
}

func TestSend_EveryTargetAndReachFindsItsMailboxes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	builders := w.agents("builder", "builder-1", "builder-2", "builder-30")
	w.agent("tester", "tester")
	lead.subscribe("news")
	builders[1].subscribe("news")
	for name, c := range map[string]struct {
		sender *agent
		m      *pb.Message
		want   []string
	}{
		"one agent":                         {lead, to("tester"), []string{"tester"}},
		"oneself":                           {lead, to("lead"), []string{"lead"}},
		"one of a role, the default":        {lead, toRole("builder"), []string{"role:builder"}},
		"one of a role, said":               {lead, toRole("builder", one), []string{"role:builder"}},
		"all of a role":                     {lead, toRole("builder", all), []string{"builder-1", "builder-2", "builder-30"}},
		"all of a role but the sender":      {builders[0], toRole("builder", all), []string{"builder-2", "builder-30"}},
		"subscribers, the default":          {builders[0], toChannel("news"), []string{"builder-2", "lead"}},
		"subscribers but the sender":        {lead, toChannel("news", all), []string{"builder-2"}},
		"one of a channel":                  {lead, toChannel("news", one), []string{"channel:news"}},
		"a pattern":                         {lead, toPattern("builder-?"), []string{"builder-1", "builder-2"}},
		"a pattern but the sender":          {builders[0], toPattern("b*"), []string{"builder-2", "builder-30"}},
		"everyone but the sender":           {lead, toEveryone(), []string{"builder-1", "builder-2", "builder-30", "tester"}},
		"everyone, from an operator":        {w.operator(), toEveryone(), []string{"builder-1", "builder-2", "builder-30", "lead", "tester"}},
		"a channel without subscribers":     {lead, toChannel("empty"), nil},
		"one of a role that nobody has yet": {lead, toRole("nobody"), []string{"role:nobody"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.sender.send(c.m)
			wantList(t, "recipients", recipients(t, r), c.want...)
			var boxes []string
			for _, d := range c.sender.get(r.Id).Deliveries {
				want(t, d.Mailbox, d.State, pending)
				boxes = append(boxes, d.Mailbox)
			}
			want(t, "deliveries", len(boxes), len(c.want))
		})
	}
}

func TestSend_EveryoneIsFineWithNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.agent("alone", "").send(toEveryone())
	want(t, "recipients", r.RecipientCount, 0)
	if r.Revision == 0 || r.Id == "" {
		t.Error(r)
	}
}

func TestSend_UnknownAgentIsNotFoundWithTheNearestNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agents("builder", "builder-1", "builder-2")
	err := lead.refused(to("bulider-1"))
	apptest.Refused(t, err, codes.NotFound, "AGENT_NOT_FOUND")
	if text := status.Convert(err).Message(); !strings.Contains(text, "builder-1") {
		t.Errorf("the nearest name is missing in: %s", text)
	}
}

func TestSend_NobodyMatchesIsNotFoundForRoleAndPattern(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	apptest.Refused(t, lead.refused(toRole("builder", all)), codes.NotFound, "ROLE_NOT_FOUND")
	apptest.Refused(t, lead.refused(toPattern("builder-*")), codes.NotFound, "AGENT_NOT_FOUND")
}

func TestSend_ToARoleNobodyServesWaitsForTheFirstWhoDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sent := w.agent("lead", "lead").send(toRole("builder", subject("early")))
	late := w.agent("late", "builder")
	got := late.claim1()
	want(t, "message", got.Message.Id, sent.Id)
	want(t, "mailbox", got.Mailbox, "role:builder")
}

func TestSend_AgentsThatRegisterLaterAreNotRecipients(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	w.agent("a", "")
	sent := lead.send(toEveryone())
	w.agent("b", "")
	want(t, "deliveries", len(lead.get(sent.Id).Deliveries), 1)
}

func TestSend_RecipientsAreNamedUpToAHundred(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	for i := range 100 {
		w.agent(fmt.Sprintf("a%03d", i), "crowd")
	}
	r := lead.send(toEveryone())
	want(t, "count", r.RecipientCount, 100)
	want(t, "named", len(r.Recipients), 100)
	w.agent("a100", "crowd")
	r = lead.send(toEveryone())
	want(t, "count", r.RecipientCount, 101)
	want(t, "named", len(r.Recipients), 0)
	want(t, "deliveries", len(lead.get(r.Id).Deliveries), 101)
}

func TestSend_StampsWhatIsTheBrokersAndKeepsTheRestExactly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "boss")
	w.agent("a", "")
	asked := lead.send(to("a"))
	m := to("a", subject("s"), kind("task.assign"), priority(7), ttl(time.Hour), due(w.now(-time.Hour)), key("k"), attempts(9))
	m.Version, m.Body, m.Payload = "1.4", "two\nlines", `{"b": 1e400,  "a":[]}`
	m.Channel, m.CorrelationId, m.TaskId, m.InReplyTo = "label", "c1", "t1", rev(asked)
	m.Labels = map[string]string{"x": "y"}
	m.Files = []*pb.FileReference{{Path: "a.go", Line: 3}, {Path: "b.go"}}
	m.Artifacts = []string{"spec.yaml"}
	sent := lead.send(m)
	got := lead.get(sent.Id).Message
	m.Id, m.Revision, m.Sender, m.SenderRole = sent.Id, sent.Revision, "lead", "boss"
	m.CreatedAt, m.ExpiresAt, m.ThreadId = w.now(0), w.now(time.Hour), asked.Id
	m.Type, m.TypeAsSent = "task_assignment", "task.assign"
	if diff := cmp.Diff(m, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestSend_FillsInTheDefaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	sent := lead.send(to("lead"))
	got := lead.get(rev(sent)).Message
	want := &pb.Message{
		Id: sent.Id, Revision: sent.Revision, Sender: "lead", CreatedAt: w.now(0), Target: to("lead").Target,
		Type: "message", Version: "1.0", Priority: 5, ThreadId: sent.Id,
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestSend_ReplyJoinsTheThreadUnlessItNamesOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	first := a.send(to("a"))
	reply := func(of *pb.SendResult, thread string) *pb.SendResult {
		m := to("a")
		m.InReplyTo, m.ThreadId = of.Id, thread
		return a.send(m)
	}
	second := reply(first, "")
	want(t, "reply", a.get(second.Id).Message.ThreadId, first.Id)
	want(t, "reply to the reply", a.get(reply(second, "").Id).Message.ThreadId, first.Id)
	want(t, "own thread", a.get(reply(second, "other").Id).Message.ThreadId, "other")
	m := to("a")
	m.InReplyTo = "4711000"
	apptest.Refused(t, a.refused(m), codes.NotFound, "MESSAGE_NOT_FOUND")
}

func TestSend_UnaryBatchIsAllOrNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	_, err := a.SendMessages(a.Ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{to("a"), to("nobody"), to("a")}})
	apptest.Refused(t, err, codes.NotFound, "AGENT_NOT_FOUND")
	if text := status.Convert(err).Message(); !strings.HasPrefix(text, "messages[1]: ") {
		t.Errorf("which message? %s", text)
	}
	want(t, "messages", len(a.list(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL}).Items), 0)
	results := a.sendAll(to("a"), toRole("r"), to("a"))
	want(t, "results", len(results), 3)
	if !(results[0].Revision < results[1].Revision && results[1].Revision < results[2].Revision) {
		t.Error("the revisions do not grow")
	}
}

func TestSend_RequestIDDoesNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	w.agent("b", "")
	r := &pb.SendMessagesRequest{RequestId: newUUID(), Messages: []*pb.Message{toEveryone(), to("a", subject("x"))}}
	one := apptest.Must(t, a.SendMessages, r)
	two := apptest.Must(t, a.SendMessages, r)
	for i := range one.Results {
		want(t, "the first is no duplicate", one.Results[i].Duplicate, false)
		one.Results[i].Duplicate = true
	}
	if diff := cmp.Diff(one, two, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	want(t, "messages", len(a.list(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL}).Items), 2)

	r.Messages = r.Messages[:1]
	apptest.Refuses(t, a.SendMessages, r, codes.AlreadyExists, "REQUEST_ID_REUSED")
	b := w.in("default", "b")
	other := apptest.Must(t, b.SendMessages, r)
	want(t, "another caller's id is another", other.Results[0].Duplicate, false)
}

func TestSend_RequestIDOfARefusalMayBeUsedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	r := &pb.SendMessagesRequest{RequestId: newUUID(), Messages: []*pb.Message{to("late")}}
	apptest.Refuses(t, a.SendMessages, r, codes.NotFound, "AGENT_NOT_FOUND")
	w.agent("late", "")
	out := apptest.Must(t, a.SendMessages, r)
	want(t, "duplicate", out.Results[0].Duplicate, false)
}

func TestSend_FullMailboxRefusesForThatRecipientOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(2))})
	lead, full, roomy := w.agent("lead", ""), w.agent("full", "worker"), w.agent("roomy", "worker")
	lead.sendAll(to("full"), to("full", due(w.now(time.Hour))))
	r := lead.send(toRole("worker", all))
	want(t, "recipients", r.RecipientCount, 2)
	want(t, "refused", r.RefusedCount, 1)
	want(t, "first", r.Recipients[0].Mailbox, "full")
	want(t, "first", r.Recipients[0].Outcome, pb.RecipientOutcome_RECIPIENT_OUTCOME_REFUSED)
	want(t, "second", r.Recipients[1].Outcome, pb.RecipientOutcome_RECIPIENT_OUTCOME_QUEUED)
	want(t, "delivery", lead.delivery(r.Id).Mailbox, "roomy")
	want(t, "claim", roomy.claim1().Message.Id, r.Id)

	// What is claimed waits no longer; what one batch adds counts.
	full.claim1()
	batch := lead.sendAll(to("full"), to("full"))
	want(t, "room for one", batch[0].RefusedCount, 0)
	want(t, "and no more", batch[1].RefusedCount, 1)
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(0))})
	want(t, "no limit", lead.send(to("full")).RefusedCount, 0)
}

func TestSend_TTLComesFromTheMessageOrTheChannel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	a.subscribe("general", "urgent", "other", "set")
	o := w.operator()
	apptest.Must(t, o.ConfigureChannel,
		&pb.ConfigureChannelRequest{Channel: "set", DefaultTtl: durationpb.New(time.Minute)})
	for _, c := range []struct {
		m    *pb.Message
		want time.Duration
	}{
		{to("a"), 0},
		{to("a", ttl(time.Second)), time.Second},
		{toChannel("general"), time.Hour},
		{toChannel("urgent"), 5 * time.Minute},
		{toChannel("other"), 0},
		{toChannel("set"), time.Minute},
		{toChannel("general", ttl(time.Second)), time.Second},
	} {
		var expires *timestamppb.Timestamp
		if c.want > 0 {
			expires = w.now(c.want)
		}
		got := lead.get(lead.send(c.m).Id).Message.ExpiresAt
		if diff := cmp.Diff(expires, got, protocmp.Transform()); diff != "" {
			t.Errorf("%v: %s", c.m.Target, diff)
		}
	}
}

func TestSend_TwoSessionsNeverSeeEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	here, there := w.agent("a", "worker"), w.in("other", "a")
	there.Register("worker")
	here.subscribe("news")
	there.subscribe("news")
	sent := w.agent("lead", "").sendAll(to("a"), toRole("worker"), toRole("worker", all), toChannel("news"), toChannel("news", one), toEveryone())
	for _, r := range sent {
		want(t, "recipients", r.RecipientCount, 1)
		for _, id := range []string{r.Id, rev(r), rev(r) + ".1"} {
			apptest.Refuses(t, there.GetMessage, &pb.GetMessageRequest{Id: id}, codes.NotFound, "MESSAGE_NOT_FOUND")
			_, err := there.AckMessages(there.Ctx, &pb.AckMessagesRequest{Ids: []string{id}})
			apptest.Refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
		}
		apptest.Refuses(t, there.CancelMessage, &pb.CancelMessageRequest{Id: r.Id}, codes.NotFound, "MESSAGE_NOT_FOUND")
		m := to("a")
		m.InReplyTo = r.Id
		apptest.Refused(t, there.refused(m), codes.NotFound, "MESSAGE_NOT_FOUND")
	}
	apptest.Refused(t, there.refused(to("lead")), codes.NotFound, "AGENT_NOT_FOUND")
	want(t, "claims", len(there.claim(10)), 0)
	want(t, "list", len(there.list(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL}).Items), 0)
	items, _ := there.receive(&pb.ReceiveRequest{})
	want(t, "received", len(items), 0)
	want(t, "claims here", len(here.claim(10)), 6)
}

func TestSend_OnlyTheRegisteredActInTheirName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ghost := w.in("default", "ghost")
	apptest.Refused(t, ghost.refused(toEveryone()), codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	_, err := ghost.ClaimMessages(ghost.Ctx, &pb.ClaimMessagesRequest{})
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	nowhere := w.in("nowhere", "ghost")
	apptest.Refused(t, nowhere.refused(toEveryone()), codes.NotFound, "SESSION_NOT_FOUND")
	o := w.operator()
	want(t, "sender", o.get(o.send(toRole("r")).Id).Message.Sender, "system")
	apptest.Refuses(t, o.ClaimMessages, &pb.ClaimMessagesRequest{}, codes.FailedPrecondition, "AGENT_REQUIRED")
}
