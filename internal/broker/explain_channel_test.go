package broker_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// warnings subscribes to a channel, and returns the warnings in one text.
func (a *agent) warnings(channel string) string {
	a.Helper()
	out := apptest.Must(a, a.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: channel})
	return strings.Join(out.Warnings, "\n")
}

func TestSubscribe_WarnsOfATypeOfEventsThatIsKnownNowhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", "lead"), w.agent("a", "")
	const unknown = "no event of the type build_finsihed is known so far: it is no type of the broker or of the catalog, and no newer event has it"
	want(t, "of no type", a.warnings("event/BuildFinsihed"), unknown)
	want(t, "of no type, again", a.warnings("event/BuildFinsihed"), unknown)
	for channel, meant := range map[string]string{
		"event/TaskComplet": "event/task_complete", "event/agent_faild": "event/agent_failed",
		"event/BlockerEncounterd": "event/blocker_encountered",
	} {
		if got := a.warnings(channel); !strings.HasSuffix(got, "; did you mean "+meant+"?") {
			t.Errorf("%s: %q", channel, got)
		}
	}
	for _, channel := range []string{"event/*", "news", "event/agent.failed", "event/AgentFailed", "event/TaskCompleted", "event/nudge"} {
		want(t, channel, a.warnings(channel), "")
	}
	lead.publish(&pb.PublishEventRequest{Type: "BuildFinsihed"})
	want(t, "of a type that an agent has published", a.warnings("event/build.finsihed"), "")
	other := w.operator()
	apptest.Must(t, other.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	there := w.in("other", "a")
	there.Register("")
	want(t, "in another session", there.warnings("event/BuildFinsihed"), unknown)
	apptest.Must(t, pb.NewCatalogServiceClient(w.In("default", "lead")).RegisterMessageType,
		&pb.RegisterMessageTypeRequest{Name: "deploy_done", Title: "A deployment is finished."})
	want(t, "of a type of the session", a.warnings("event/DeployDone"), "")
}

// explainChannel returns the findings about a channel.
func (a *agent) explainChannel(name string) ([]*pb.Finding, error) {
	out, err := a.Explain(a.Ctx, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Channel{Channel: name}})
	return out.GetFindings(), err
}

// explainsChannel returns the finding of a channel, which is the only one.
func (a *agent) explainsChannel(name string) *pb.Finding {
	a.Helper()
	found, err := a.explainChannel(name)
	apptest.NoError(a, err)
	if len(found) != 1 {
		a.Fatalf("findings %v", found)
	}
	return found[0]
}

func TestExplainChannel_NamesSubscribersTheLastMessageAndWhatWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, lead, a, b := w.operator(), w.agent("lead", "lead"), w.agent("a", ""), w.agent("b", "")
	a.subscribe("news")
	b.subscribe("news")
	f := o.explainsChannel("news")
	want(t, "severity", f.Severity, pb.FindingSeverity_FINDING_SEVERITY_INFO)
	want(t, "subject", f.Subject, "channel news")
	want(t, "summary", f.Summary, "a and b subscribe to it")
	wantList(t, "reasons before a message", f.Reasons, "no message came: the broker keeps none, or it is older than the newest 10,000")
	lead.send(toChannel("news", subject("one")))
	last := lead.send(toChannel("news", subject("two")))
	lead.send(toChannel("other", subject("three")))
	a.ack(a.claim1().ClaimId)
	w.Clock.Advance(2 * time.Minute)
	f = o.explainsChannel("news")
	wantList(t, "reasons", f.Reasons, "the last message, "+itoa(last.Revision)+" of type message from lead, came at "+
		w.Clock.Now().Add(-2*time.Minute).UTC().Format("15:04:05")+" UTC (2m ago)", "3 deliveries of its newest messages wait")
	wantList(t, "calls", testkit.Calls(f.Calls),
		`ListMessages {"box":"MESSAGE_BOX_ALL","filter":{"channels":["news"]},"newest_first":true}`)
	_, err := o.explainChannel("newss")
	if status.Code(err) != codes.NotFound || client.Reason(err) != "CHANNEL_NOT_FOUND" || !strings.HasSuffix(status.Convert(err).Message(), "; did you mean news?") {
		t.Error(err)
	}
}

func TestExplainChannel_WarnsIfNoAgentSubscribes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, lead, a := w.operator(), w.agent("lead", "lead"), w.agent("a", "")
	a.subscribe("news")
	a.unsubscribe("news")
	f := o.explainsChannel("news")
	want(t, "severity", f.Severity, pb.FindingSeverity_FINDING_SEVERITY_WARNING)
	want(t, "summary", f.Summary, "no agent subscribes to it")
	lead.send(toChannel("news", one))
	found, err := o.explainChannel("news")
	apptest.NoError(t, err)
	if len(found) != 2 || found[0].Subject != "mailbox channel:news" || found[0].Severity != pb.FindingSeverity_FINDING_SEVERITY_ERROR ||
		!strings.Contains(found[0].Summary, "1 message waits in it, and no other agent subscribes to news") || !strings.Contains(strings.Join(found[1].Reasons, ", "), "1 delivery of its newest messages waits") {
		t.Errorf("with a message in its queue: %v", found)
	}
}

func TestExplainChannel_OfEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, lead, a, b := w.operator(), w.agent("lead", "lead"), w.agent("a", ""), w.agent("b", "")
	f := o.explainsChannel("event/TaskComplet")
	want(t, "severity", f.Severity, pb.FindingSeverity_FINDING_SEVERITY_WARNING)
	want(t, "subject", f.Subject, "channel event/task_complet")
	want(t, "summary", f.Summary, "no agent subscribes to it or to event/*")
	want(t, "first reason", f.Reasons[0], "did you mean event/task_complete?")
	a.subscribe("event/TaskCompleted")
	b.subscribe("event/*")
	lead.publish(&pb.PublishEventRequest{Type: "TaskCompleted", Summary: "done"})
	f = o.explainsChannel("event/task.completed")
	want(t, "summary with subscribers", f.Summary, "a and b subscribe to it")
	if says := strings.Join(f.Reasons, ", "); !strings.Contains(says, "of type event from system") || !strings.Contains(says, "2 deliveries of its newest messages wait") {
		t.Errorf("reasons %q", says)
	}
	want(t, "of all events", o.explainsChannel("event/*").Summary, "b subscribes to it")
}
