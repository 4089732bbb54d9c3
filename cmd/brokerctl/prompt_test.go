package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// longest is a message whose every name and id is as long as the API allows, without content.
func longest() *pb.Message {
	name := strings.Repeat("n", 128)
	return &pb.Message{
		Id: "01890a5d-ac96-774b-bcce-b302099a8057", Revision: 1 << 62, Sender: name, SenderRole: name, CreatedAt: before(59 * time.Minute),
		Target: &pb.Target{To: &pb.Target_Channel{Channel: name}}, Type: name, Priority: 10, ThreadId: name, CorrelationId: name,
		InReplyTo: "01890a5d-ac96-774b-bcce-b302099a8057", TaskId: name, RequiresResponse: true, ResponseDeadline: before(-59 * time.Minute),
	}
}

func TestPrompt_AMessageCostsAtMost200TokensOverItsContent(t *testing.T) {
	c, _, out := printer(formatPrompt)
	c.global.agent = "builder-1"
	claim := &pb.ClaimedMessage{
		ClaimId: "4611686018427387904.100", Message: longest(), Attempt: 100, MaxAttempts: 100, ExpiresIn: durationpb.New(12 * time.Hour), Resumed: true,
	}
	c.printPrompt(out, c.claimed(claim))
	for _, d := range []*pb.Delivery{
		{State: pb.DeliveryState_DELIVERY_STATE_PENDING, Attempts: 99, MaxAttempts: 100},
		{State: pb.DeliveryState_DELIVERY_STATE_CLAIMED, ClaimId: claim.GetClaimId(), Attempts: 99, MaxAttempts: 100},
	} {
		out.WriteString("\x00")
		c.printPrompt(out, c.received(&pb.InboxItem{Message: longest(), Delivery: d}))
	}
	for _, kind := range []string{"halt", "shutdown_request"} {
		m := longest()
		m.Type = kind
		claim.Message = m
		out.WriteString("\x00")
		c.printPrompt(out, c.claimed(claim))
	}
	for _, text := range strings.Split(out.String(), "\x00") {
		if n := tokens(text); n > 200 {
			t.Errorf("%d tokens:\n%s", n, text)
		}
	}
}

func TestPrompt_SaysWhatToDoNext(t *testing.T) {
	c, _, _ := printer(formatPrompt)
	c.global.agent = "it's me"
	const as = `brokerctl --agent 'it'\''s me' `
	for _, test := range []struct {
		kind  string
		asked bool
		want  string
	}{
		{"work", false, as + "ack 7.1 when done; nack 7.1 --error WHY if it failed; release 7.1 to give it back"},
		{"work", true, as + "reply 7.1 ANSWER --ack when done; nack 7.1 --error WHY if it failed; release 7.1 to give it back"},
		{"halt", false, "stop working now; nothing but directives comes until a resume. To say that you have seen it: " + as + "ack 7.1"},
	} {
		m := &pb.Message{Type: test.kind, RequiresResponse: test.asked, Revision: 7}
		if got := c.afterClaim(m, "7.1"); got != test.want {
			t.Errorf("%s: %q, want %q", test.kind, got, test.want)
		}
	}
}

func TestPrompt_HasNoTables(t *testing.T) {
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	must0(t, "--agent", "builder-1", "channel", "subscribe", "builds")
	id := sent(t, "--agent", "lead", "builder-1", "Add login")
	for _, c := range []struct{ args, want string }{
		{"agent list", "agent builder-1, role builder, status initializing, health ok, seen now\n"},
		{"agent list --roles", "role builder, agents 1, active 0, failed 0\n"},
		{"agent get builder-1", "agent: builder-1\nrole: builder\n"},
		{"channel list", "channel builds, "},
		{"session list", "session default, created now, "},
		{"session get", "session: default\n"},
		{"status", "mailbox builder-1, waiting 1, claimed 0, dead 0\n"},
		{"message get " + id, "=== c0ffee00 end ===\nrecipient builder-1, state PENDING, failed 0 of 3, read no\n"},
		{"message list", "Subject: Add login\n"},
		{"event list --limit 1", "event "},
		{"--agent builder-1 agent heartbeat", "1 unread, 1 to claim"},
		{"--agent builder-1 inbox", "Next: brokerctl --agent builder-1 ack " + id + " when dealt with; reply " + id + " ANSWER to answer\n"},
		{"--agent builder-1 claim", "Next: brokerctl --agent builder-1 ack " + id + ".1 when done"},
		{"--agent builder-1 whoami", "builder-1 (from --agent), role builder, "},
	} {
		out := must0(t, append([]string{"-o", "prompt"}, strings.Fields(c.args)...)...)
		if !strings.Contains(out, c.want) || strings.Contains(out, "  ") {
			t.Errorf("%s: want %q in, and no columns:\n%s", c.args, c.want, out)
		}
	}
}
