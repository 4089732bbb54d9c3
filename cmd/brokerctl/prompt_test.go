package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/output"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// longest is a message whose every name and id is as long as the API allows, without content.
func longest() *pb.Message {
	name := strings.Repeat("n", 128)
	return &pb.Message{
		Id: "01890a5d-ac96-774b-bcce-b302099a8057", Revision: 1 << 62, Sender: name, SenderRole: name, CreatedAt: before(59 * time.Minute),
		Target: &pb.Target{To: &pb.Target_Channel{Channel: name}}, Type: name, TypeAsSent: name, Priority: 10, ThreadId: name, CorrelationId: name,
		InReplyTo: "01890a5d-ac96-774b-bcce-b302099a8057", TaskId: name, RequiresResponse: true, ResponseDeadline: before(-59 * time.Minute),
	}
}

func TestPrompt_AMessageCostsAtMost200TokensOverItsContent(t *testing.T) {
	c, _, buffer := printer(output.FormatPrompt)
	c.Global.Agent = "builder-1"
	out := prompt.NewWriter(buffer, prompt.NewMark, "")
	claim := &pb.ClaimedMessage{
		ClaimId: "4611686018427387904.100", Message: longest(), Attempt: 100, MaxAttempts: 100, ExpiresIn: durationpb.New(12 * time.Hour), Resumed: true,
	}
	c.Voice().Message(out, c.Voice().Claimed(claim))
	for _, d := range []*pb.Delivery{
		{State: pb.DeliveryState_DELIVERY_STATE_PENDING, Attempts: 99, MaxAttempts: 100},
		{State: pb.DeliveryState_DELIVERY_STATE_CLAIMED, ClaimId: claim.GetClaimId(), Attempts: 99, MaxAttempts: 100},
	} {
		buffer.WriteString("\x00")
		c.Voice().Message(out, c.Voice().Received(&pb.InboxItem{Message: longest(), Delivery: d}))
	}
	for _, kind := range []string{"halt", "shutdown_request"} {
		m := longest()
		m.Type = kind
		claim.Message = m
		buffer.WriteString("\x00")
		c.Voice().Message(out, c.Voice().Claimed(claim))
	}
	for _, text := range strings.Split(buffer.String(), "\x00") {
		if n := tokens(text); n > 200 {
			t.Errorf("%d tokens:\n%s", n, text)
		}
	}
}

func TestPrompt_SaysWhatToDoNext(t *testing.T) {
	c, _, _ := printer(output.FormatPrompt)
	c.Global.Agent = "it's me"
	const (
		as        = `brokerctl --agent 'it'\''s me' `
		otherwise = "; nack 7.1 --error ERROR if it failed; release 7.1 to return it"
	)
	one := &pb.Target{To: &pb.Target_Agent{Agent: "it's me"}}
	role := &pb.Target{To: &pb.Target_Role{Role: "builder"}}
	all := &pb.Target{To: &pb.Target_Everyone{Everyone: true}}
	for _, test := range []struct {
		what string
		m    *pb.Message
		want string
	}{
		{"a task", &pb.Message{Sender: "lead", Target: one}, as + "reply 7.1 ANSWER --ack when done" + otherwise},
		{"a task for a role", &pb.Message{Sender: "lead", Target: role}, as + "reply 7.1 ANSWER --ack when done" + otherwise},
		{"a question", &pb.Message{RequiresResponse: true}, as + "reply 7.1 ANSWER --ack when done" + otherwise},
		{"an answer", &pb.Message{Sender: "lead", Target: one, InReplyTo: "x"}, as + "ack 7.1 when done" + otherwise},
		{"of an operator", &pb.Message{Sender: "system", Target: one}, as + "ack 7.1 when done" + otherwise},
		{"for all", &pb.Message{Sender: "lead", Target: all}, as + "ack 7.1 when done" + otherwise},
		{"an order", &pb.Message{Type: "halt"}, "stop working now; nothing but directives comes until a resume. To say that you have seen it: " + as + "ack 7.1"},
	} {
		if got := c.Voice().AfterClaim(test.m, "7.1"); got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
}

func TestPrompt_HasNoTables(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "--agent", "builder-1", "channel", "subscribe", "builds")
	id := sent(t, "--agent", "lead", "builder-1", "Add login")
	for _, c := range []struct{ args, want string }{
		{"agent list", "agent builder-1, role builder, state idle, seen now\n"},
		{"agent list --roles", "role builder, agents 1, active 0, failed 0\n"},
		{"agent get builder-1", "agent: builder-1\nrole: builder\n"},
		{"channel list", "channel builds, "},
		{"session list", "session default, state open, created now, "},
		{"session get", "session: default\n"},
		{"status", "mailbox builder-1, waiting 1, claimed 0, dead 0\n"},
		{"message get " + id, "\nrecipient builder-1, state pending, failed 0 of 3, read no\n"},
		{"message list", "Subject: Add login\n"},
		{"event list --limit 1", "event "},
		{"--agent builder-1 agent heartbeat", "1 unread, 1 to claim"},
		{"--agent builder-1 inbox", "Next: brokerctl --agent builder-1 ack " + id + " when dealt with; reply " + id + " ANSWER to answer\n"},
		{"--agent builder-1 claim", "Next: brokerctl --agent builder-1 reply " + id + ".1 ANSWER --ack when done"},
		{"--agent builder-1 whoami", "builder-1 (from --agent), role builder, "},
	} {
		out := recently(must0(t, append([]string{"-o", "prompt"}, strings.Fields(c.args)...)...))
		if !strings.Contains(out, c.want) || strings.Contains(out, "  ") {
			t.Errorf("%s: want %q in, and no columns:\n%s", c.args, c.want, out)
		}
	}
}

// The sender gives no deadline, so that the session's response time applies.
func TestPrompt_ShowsTheDeadlineOfTheSession(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	id := sent(t, "--agent", "lead", "builder-1", "Which branch?", "--requires-response")
	for _, command := range [][]string{
		{"--agent", "builder-1", "next", "-o", "prompt"}, {"message", "get", id, "-o", "prompt"}, {"message", "get", id, "-o", "table"},
	} {
		out := must0(t, command...)
		if !regexp.MustCompile(`answer (is )?due .*in (9m|10m)`).MatchString(out) {
			t.Errorf("%q does not show the deadline in 10 min:\n%s", command, out)
		}
	}
}

func TestText_ShowsTheTypeAsItsSenderWroteIt(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	id := sent(t, "--agent", "lead", "builder-1", "Add login", "--type", "TaskAssignment")
	plain := sent(t, "--agent", "lead", "builder-1", "Add logout", "--type", "task_assignment")
	must0(t, "--agent", "lead", "event", "publish", "BuildFinished")
	const shown = "(sent as TaskAssignment)"
	for _, command := range [][]string{
		{"message", "get", id, "-o", "prompt"}, {"message", "get", id, "-o", "table"}, {"message", "report", id, "-o", "table"},
		{"--agent", "builder-1", "inbox", "-o", "prompt"},
		{"--agent", "builder-1", "claim", "-o", "prompt"},
	} {
		if out := must0(t, command...); strings.Count(out, "task_assignment "+shown) != 1 {
			t.Errorf("%q: want %s once:\n%s", command, shown, out)
		}
	}
	if out := must0(t, "--agent", "builder-1", "inbox", "-o", "table", "--wide"); strings.Count(out, "TaskAssignment") != 1 {
		t.Errorf("want a column with the spelling:\n%s", out)
	}
	if out := must0(t, "message", "get", plain); strings.Contains(out, "sent as") {
		t.Errorf("the canonical name is shown twice:\n%s", out)
	}
	if out := must0(t, "event", "list", "-o", "prompt"); !strings.Contains(out, "build_finished (sent as BuildFinished)") {
		t.Errorf("want the spelling of the published event:\n%s", out)
	}
}
