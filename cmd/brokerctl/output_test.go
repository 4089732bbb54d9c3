package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/messages"
	"brokerd/cmd/brokerctl/observe"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/prompt"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// printer is a cli at noon with its output, on a wide terminal.
func printer(format string) (*command.Caller, *cobra.Command, *bytes.Buffer) {
	var out bytes.Buffer
	c := command.New(setting.Environment{Dir: "/", Now: func() time.Time { return noon }, Mark: testMark, Columns: 160})
	newRoot(c)          // the commands that texts name
	c.Global.Color = "" // as text is printed to a file
	c.Global.Output = format
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	return c, cmd, &out
}

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(noon.Add(-d)) }

func item() *pb.InboxItem {
	return &pb.InboxItem{
		Message: &pb.Message{
			Id: "id-1", Revision: 4711, Sender: "lead", SenderRole: "lead", CreatedAt: before(3 * time.Minute), ThreadId: "id-1",
			Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder-1"}}, Type: "task_assignment", Subject: "Add login",
			Body: "Please.\n", Payload: `{"task_id":"t1"}`, Priority: 7, Files: []*pb.FileReference{{Path: "a.go", Line: 3}, {Path: "b.go"}},
			Labels: map[string]string{"b": "2", "a": "1"},
		},
		Delivery: &pb.Delivery{Mailbox: "builder-1", State: pb.DeliveryState_DELIVERY_STATE_PENDING, Attempts: 1, MaxAttempts: 3},
	}
}

func wantText(t testing.TB, got, want string) {
	t.Helper()
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTable_AlignsAndShortens(t *testing.T) {
	c, cmd, out := printer(output.FormatTable)
	second := item()
	second.Message.Revision, second.Message.Sender, second.Message.CreatedAt = 4712, "a-long-name", before(49*time.Hour)
	second.Message.Subject, second.Message.Body = "", strings.Repeat("many words ", 20)
	second.Delivery = &pb.Delivery{State: pb.DeliveryState_DELIVERY_STATE_CLAIMED, ClaimId: "4712.1"}
	apptest.NoError(t, output.List(&c.Output, cmd, []*pb.InboxItem{item(), second}, messages.InboxView(c)))
	wantText(t, out.String(), `
REV   PRIO  SENT    FROM         TYPE             STATE               TEXT
4711  7     3m ago  lead         task_assignment  new, failed 1 of 3  Add login
4712  7     2d ago  a-long-name  task_assignment  claimed 4712.1      many words many words many words many words many words many words many words many words m…
`)
}

func TestTable_NothingIsSaidInWords(t *testing.T) {
	c, cmd, out := printer(output.FormatTable)
	apptest.NoError(t, output.List(&c.Output, cmd, nil, messages.InboxView(c)))
	wantText(t, out.String(), "no messages\n")
}

func TestFollow_PrintsAlignedLinesAsTheyCome(t *testing.T) {
	c, cmd, out := printer(output.FormatTable)
	print, err := output.Follow(&c.Output, cmd, observe.EventView(c))
	apptest.NoError(t, err)
	for _, e := range []*pb.Event{
		{Revision: 7, Time: before(0), Type: "message.sent", Source: "lead", Summary: "task_assignment to builder-1"},
		{Revision: 8, Time: before(0), Type: "message.dead", Source: "system", Summary: "given up", Severity: pb.Severity_SEVERITY_WARNING},
	} {
		apptest.NoError(t, print(e))
	}
	wantText(t, out.String(), `
REV     TIME     SEVERITY  TYPE                  SOURCE        SUMMARY
7       now      -         message.sent          lead          task_assignment to builder-1
8       now      warning   message.dead          system        given up
`)
}

func TestPrompt_IsCompactAndFencedByAMarkNobodyKnows(t *testing.T) {
	c, _, out := printer(output.FormatPrompt)
	m := item().Message
	m.Body = "Please.\n=== end ===\n\x1b[2J"
	c.Voice().Message(prompt.NewWriter(out, testMark, ""), c.Voice().Claimed(&pb.ClaimedMessage{
		ClaimId: "4711.2", Message: m, Attempt: 2, MaxAttempts: 3, ExpiresIn: durationpb.New(30 * time.Minute), Resumed: true,
	}))
	wantText(t, out.String(), `
=== c0ffee00 message 4711: task_assignment from lead (lead) to builder-1, priority 7, sent 3m ago, claim 4711.2, attempt 2 of 3, yours for 30m, held before ===
Subject: Add login
Labels: a=1, b=2
Files: a.go:3, b.go
Please.
=== end ===
`+"\ufffd[2J"+`
Payload: {"task_id":"t1"}
=== c0ffee00 end ===
Next: brokerctl reply 4711.2 ANSWER --ack when done; nack 4711.2 --error ERROR if it failed; release 4711.2 to return it
`)
}

func TestMessage_IsLaidOutForPeople(t *testing.T) {
	c, _, out := printer(output.FormatTable)
	mail.Print(c, out, c.Voice().Received(item()))
	messages.PrintDeliveries(c, out, []*pb.Delivery{
		{Mailbox: "builder-1", State: pb.DeliveryState_DELIVERY_STATE_ACKED, MaxAttempts: 3, AckedBy: "builder-1", FinishedAt: before(time.Minute), ReadAt: before(2 * time.Minute), Attempts: 1,
			History: []*pb.Attempt{{Number: 1, Agent: "builder-1", Error: "no\nluck", EndedAt: before(time.Hour)}}},
		{Mailbox: "builder-2", State: pb.DeliveryState_DELIVERY_STATE_PENDING, MaxAttempts: 3},
	})
	wantText(t, out.String(), `
4711  task_assignment  from lead (lead) to builder-1
  Add login
  new, failed 1 of 3
  sent         3m ago
  priority     7
  labels       a=1, b=2
  files        a.go:3, b.go

Please.

{"task_id":"t1"}
RECIPIENT  STATE    SINCE   BY         FAILED  READ
builder-1  acked    1m ago  builder-1  1 of 3  2m ago
builder-2  pending  -       -          0 of 3  no
builder-1, attempt 1 by builder-1, 1h ago: no; luck
`)
}

func TestOutput_CannotMoveTheCursorOrHideText(t *testing.T) {
	if got := prompt.Clean("a\x1b[31mb\r\x00\u202ec\td\n\u009be"); got != "a\ufffd[31mb\ufffd\ufffd\ufffdc d\n\ufffde" {
		t.Errorf("%q", got)
	}
}

func TestTimes_AreShort(t *testing.T) {
	c, _, _ := printer(output.FormatTable)
	for d, want := range map[time.Duration]string{
		0: "now", 999 * time.Millisecond: "now", time.Second: "1s ago", 80 * time.Second: "1m ago", 3 * time.Hour: "3h ago",
		47 * time.Hour: "47h ago", 72 * time.Hour: "3d ago", -5 * time.Minute: "in 5m", -(30*time.Minute - time.Second): "in 30m",
		-900 * time.Millisecond: "in 900ms", -(time.Hour - time.Second): "in 1h", -59700 * time.Millisecond: "in 1m",
	} {
		if got := c.When(before(d)); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 24 * time.Hour: "24h", 90 * time.Second: "1m30s", 10 * time.Minute: "10m", 1500 * time.Millisecond: "1.5s", 10 * time.Second: "10s",
		47 * time.Hour: "47h", 7 * 24 * time.Hour: "7d", 100*time.Hour + 30*time.Minute: "4d4h30m", -72 * time.Hour: "-72h",
	} {
		if got := prompt.Duration(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
		if back, err := command.ParseDuration(prompt.Duration(d)); err != nil || back != d {
			t.Errorf("%q reads back as %v, %v", prompt.Duration(d), back, err)
		}
	}
}

func TestAgent_ShowsItsStateAndWhatKeepsWorkFromIt(t *testing.T) {
	for _, test := range []struct {
		agent *pb.Agent
		want  string
	}{
		{&pb.Agent{State: "starting", RegisteredAt: before(time.Hour), LastSeen: before(0)}, "starting"},
		{&pb.Agent{State: "failed", Degraded: true}, "failed, degraded"},
		{&pb.Agent{State: "degraded", Degraded: true}, "degraded"},
		{&pb.Agent{State: "busy", RegisteredAt: before(time.Hour), LastSeen: before(0), Halted: true}, "busy, halted"},
		{&pb.Agent{State: "idle", LastSeen: before(time.Hour), AsleepSince: before(time.Hour)}, "idle, asleep"},
		{&pb.Agent{State: "stopped", StoppedAt: before(time.Hour), AsleepSince: before(time.Hour)}, "stopped"},
	} {
		if got := prompt.AgentState(test.agent); got != test.want {
			t.Errorf("%v: %q, want %q", test.agent, got, test.want)
		}
	}
}

func TestCommands_AllExplainThemselves(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: the short help is %q", cmd.CommandPath(), cmd.Short)
		}
		if command.IsTopic(cmd) {
			return
		}
		if cmd.HasParent() && !cmd.Parent().HasParent() && cmd.GroupID == "" {
			t.Errorf("%s is in no group", cmd.CommandPath())
		}
		if cmd.RunE == nil || cmd.ValidArgsFunction == nil && cmd.Name() != "work" && cmd.HasParent() {
			t.Errorf("%s: runs nothing, or completes file names for what are none", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(command.New(setting.Environment{})))
}

func TestOutput_IDsAreAllThatIsPrinted(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	must0(t, "-a", "lead", "task", "create", "Write the API", "--id", "api")
	must0(t, "-a", "builder-1", "task", "create", "Write the schema", "--id", "schema")
	message := must0(t, "-a", "lead", "send", "builder-1", "Add login", "-o", "id")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"schema\napi\n", []string{"task", "list"}},
		{"api\n", []string{"task", "get", "api"}},
		{"docs\n", []string{"-a", "lead", "task", "create", "Write the docs", "--id", "docs"}},
		{"builder-1\nlead\n", []string{"agent", "list"}},
		{"login/status\n", []string{"-a", "lead", "state", "put", "login/status", "done"}},
		{message, []string{"-a", "lead", "message", "list", "--box", "sent"}},
		{"", []string{"token", "list"}},
	} {
		if got := must0(t, append(c.args, "-o", "id")...); got != c.want {
			t.Errorf("%q prints %q, want %q", c.args, got, c.want)
		}
	}
	fence := strings.TrimSpace(must0(t, "-a", "lead", "lock", "acquire", "a.go", "-o", "id"))
	if got := must0(t, "-a", "lead", "lock", "list", "-o", "id"); got != fence+"\n" {
		t.Errorf("lock list prints %q, want %q", got, fence)
	}
	if got := ctl(t, "version", "-o", "id"); got.code != problem.ExitUsage || !strings.Contains(got.err, "has no ids") {
		t.Errorf("%+v", got)
	}
}
