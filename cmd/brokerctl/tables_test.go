package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/bench"
	"brokerd/cmd/brokerctl/decisions"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/messages"
	"brokerd/cmd/brokerctl/observe"
	"brokerd/cmd/brokerctl/people"
	"brokerd/cmd/brokerctl/shared"
	"brokerd/cmd/brokerctl/table"
	"brokerd/cmd/brokerctl/work"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/prompt"
)

// letters returns two messages in a mailbox; their delivery is shown to an agent.
func letters() []*pb.InboxItem {
	second := item()
	second.Message.Id, second.Message.Revision, second.Message.Sender, second.Message.CreatedAt = "01a20204-28d5-74cd-a0e1-000000001268", 4712, "orchestrator-of-東京", before(49*time.Hour)
	second.Message.Subject, second.Message.Body = "", "Please look at the login page again: the button is too small, and the text below it is not aligned with the field"
	second.Delivery = &pb.Delivery{Mailbox: "builder-1", State: pb.DeliveryState_DELIVERY_STATE_DEAD, Attempts: 3, MaxAttempts: 3, FinishedAt: before(time.Hour),
		History: []*pb.Attempt{{Number: 3, Agent: "builder-1", Error: "exit status 1: tests fail in internal/web/login_test.go, in two places", EndedAt: before(time.Hour)}}}
	return []*pb.InboxItem{item(), second}
}

// tables are all tables of brokerctl, with fixed data.
var tables = []struct {
	name  string
	print func(c *command.Caller, cmd *cobra.Command, w io.Writer) error
}{
	{"agent list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, []*pb.Agent{
			{Name: "builder-1", Role: "builder", Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, Health: pb.Health_HEALTH_OK, State: "busy", LastSeen: before(time.Second), Activity: "running the tests of the login page",
				Progress: 0.4, Capabilities: []string{"go", "sql", "html", "css"}, Description: "builds pages and their tests"},
			{Name: "builder-2", Role: "builder", Status: pb.AgentStatus_AGENT_STATUS_IDLE, Degraded: true, Health: pb.Health_HEALTH_FAILED, State: "failed", LastSeen: before(2 * time.Hour)},
		}, people.AgentView(c))
	}},
	{"agent list --roles", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, []*pb.RoleSummary{{Role: "builder", Agents: 2, Active: 1, Failed: 1}, {Agents: 1}}, people.RoleView())
	}},
	{"agent get", func(c *command.Caller, _ *cobra.Command, w io.Writer) error {
		people.PrintAgent(c, w, &pb.GetAgentResponse{Agent: &pb.Agent{
			Name: "builder-1", Role: "builder", Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, Health: pb.Health_HEALTH_LATE, State: "late", LastSeen: before(time.Minute), RegisteredAt: before(time.Hour),
			Description: "builds the pages of the site and their tests, and keeps the style of the existing pages while it does so", Incarnation: 2, Lease: durationpb.New(90 * time.Second),
		}, Unread: 2, Claimable: 1})
		return nil
	}},
	{"inbox, receive", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, letters(), messages.InboxView(c))
	}},
	{"inbox --follow, receive --follow", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return followed(c, cmd, letters(), messages.InboxView(c))
	}},
	{"message list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, letters(), messages.MessageView(c, true))
	}},
	{"message list, of an operator", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, []*pb.InboxItem{{Message: item().Message}}, messages.MessageView(c, false))
	}},
	{"message get", func(c *command.Caller, _ *cobra.Command, w io.Writer) error {
		messages.PrintDeliveries(c, w, []*pb.Delivery{letters()[0].GetDelivery(), letters()[1].GetDelivery()})
		return nil
	}},
	{"dlq list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		gone := letters()[1]
		gone.Delivery.History = []*pb.Attempt{{Error: "AGENT_GONE: "}}
		return output.List(&c.Output, cmd, []*pb.InboxItem{letters()[1], gone}, messages.DeadView(c))
	}},
	{"thread list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		m := letters()[1].GetMessage()
		threads := []*pb.ThreadSummary{{
			ThreadId: m.GetId(), Messages: 3, LastAt: before(time.Hour),
			Participants: []string{"orchestrator-of-東京", "builder-1"},
			FirstMessage: &pb.ThreadMessage{Id: m.GetId(), Revision: m.GetRevision(), Sender: m.GetSender(),
				Subject: prompt.Summary(m)},
			LastMessage: &pb.ThreadMessage{Revision: m.GetRevision() + 3, Sender: "builder-1", Subject: "login"},
			OpenQuestions: []*pb.OpenQuestion{{Revision: m.GetRevision() + 2, Sender: "builder-1", Subject: "Which branch?",
				Deadline: before(-time.Minute)}},
		}}
		return output.List(&c.Output, cmd, threads, messages.ThreadView(c))
	}},
	{"mailbox list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, []*pb.MailboxSummary{
			{Mailbox: "role:builder", Waiting: 12, Claimed: 1, OldestAt: before(time.Hour)}, {Mailbox: "builder-1", Dead: 1000},
		}, messages.MailboxView(c))
	}},
	{"lock list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, []proto.Message{
			&pb.Lock{Fence: 11, Mode: pb.LockMode_LOCK_MODE_EXCLUSIVE, Agent: "builder-1", Holder: "run-1", Waiting: 1, GrantedAt: before(3 * time.Minute), HeldUntil: before(time.Second - 30*time.Minute),
				Paths: []string{"internal/web/login.go", "internal/web/login_test.go", "it's"}, Reason: "moves the login form"},
			&pb.LockTicket{Ticket: 13, Mode: pb.LockMode_LOCK_MODE_SHARED, Agent: "builder-2", Position: 1, Kept: true, CreatedAt: before(time.Minute), Paths: []string{"internal/web/"},
				Obstacles: []*pb.Obstacle{{Agent: "builder-1", Holder: "run-1"}}},
		}, shared.LockView(c))
	}},
	{"token list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, []*pb.Token{
			{Type: "deploy", Scope: "staging", State: pb.TokenState_TOKEN_STATE_CONTESTED, Agent: "builder-2", Role: "builder", Fence: 11, HeldUntil: before(-time.Hour), Waiting: 1, Reason: "release 1.2"},
			{Type: "review", Scope: "login page", State: pb.TokenState_TOKEN_STATE_AVAILABLE, LastReleasedAt: before(time.Minute)},
		}, shared.TokenView(c))
	}},
	{"token get", func(c *command.Caller, _ *cobra.Command, w io.Writer) error {
		shared.PrintToken(c, w, &pb.GetTokenResponse{
			Token:   &pb.Token{Type: "deploy", Scope: "staging", State: pb.TokenState_TOKEN_STATE_HELD, Agent: "builder-2", Fence: 11, GrantedAt: before(time.Minute), HeldUntil: before(-time.Hour)},
			Tickets: []*pb.TokenTicket{{Ticket: 13, Agent: "builder-1", Position: 1, CreatedAt: before(time.Minute), Reason: "release 1.3"}},
		})
		return nil
	}},
	{"state list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, keys(), shared.StateView(c))
	}},
	{"state follow", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return followed(c, cmd, keys(), shared.StateView(c))
	}},
	{"event list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, happened(), observe.EventView(c))
	}},
	{"event follow", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return followed(c, cmd, happened(), observe.EventView(c))
	}},
	{"channel list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, []*pb.Channel{{Name: "builds", DefaultTtl: durationpb.New(30 * time.Minute), Waiting: 2, Subscribers: []string{"builder-1", "builder-2", "lead"}}}, messages.ChannelView())
	}},
	{"session list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, []*pb.Session{{Name: "website", State: pb.SessionState_SESSION_STATE_OPEN, CreatedAt: before(72 * time.Hour), Description: "The relaunch of the web site",
			Settings: &pb.SessionSettings{Ageing: durationpb.New(5 * time.Minute), MailboxLimit: proto.Int64(10000), MaxAttempts: proto.Int32(3), SendRate: proto.Float64(10)}}}, people.SessionView(c))
	}},
	{"decision list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, []*pb.Decision{
			{Id: "d-4711", Kind: decisions.KindReview, Scope: "login", Round: 2, MaxRounds: 3, State: decisions.DecisionOpen, Opener: "builder-1", Role: "critic", Title: "The login page", ChangedAt: before(time.Minute)},
			{Id: "d-4712", Kind: decisions.KindShutdown, Scope: "builder-2", Round: 1, MaxRounds: 3, State: decisions.DecisionDecided, Verdict: "defer", Opener: "lead", Agent: "builder-2",
				Title: "The work is done", Rounds: []*pb.Verdict{{Verdict: "defer", DecidedBy: "builder-2"}}, ChangedAt: before(time.Hour)},
		}, decisions.DecisionView(c, "no decisions"))
	}},
	{"task list", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		return output.List(&c.Output, cmd, someTasks(), work.TaskView(c, nil))
	}},
	{"task list --tree", func(c *command.Caller, cmd *cobra.Command, _ io.Writer) error {
		tree := work.NewTaskTree(someTasks())
		return output.List(&c.Output, cmd, tree.Order, work.TaskView(c, tree.Depth))
	}},
	{"task get", func(c *command.Caller, _ *cobra.Command, w io.Writer) error {
		work.PrintTask(c, w, &pb.GetTaskResponse{
			Task: someTasks()[1], History: []*pb.TaskAttempt{{Number: 1, Agent: "builder-2", EndedAt: before(time.Hour), Error: "exit status 1"}},
			Dependencies: []*pb.TaskBrief{{Id: "schema", Title: "Write the schema", State: pb.TaskState_TASK_STATE_DONE}},
			References:   []*pb.TaskReference{{Kind: "state", Id: "plan/step", Revision: 4713}},
		})
		return nil
	}},
	{"status", func(c *command.Caller, _ *cobra.Command, w io.Writer) error {
		observe.PrintStatus(c, w, &pb.GetStatusResponse{Session: "default", Agents: 2, FailedAgents: 1, Waiting: 3, Version: "0.4.0", StartedAt: before(time.Hour), Revision: 4712, Sync: "full",
			DataDir: "/home/ada/.local/share/brokerd/of-a-project-with-a-long-name/data", Listen: []string{"unix:///run/user/1000/brokerd.sock"}, Mailboxes: []*pb.MailboxStatus{{Mailbox: "role:builder", Waiting: 3, Dead: 1}},
		}, []*pb.Finding{{Severity: pb.FindingSeverity_FINDING_SEVERITY_ERROR, Subject: "mailbox role:builder", Summary: "3 messages wait in it, and no agent has that role"}})
		return nil
	}},
	{"bench", func(c *command.Caller, _ *cobra.Command, w io.Writer) error {
		return bench.ShowBench(c, w, output.FormatTable, []bench.Result{{Workload: "send", Count: 1000, Took: time.Second, PerSecond: 1000, P50: time.Millisecond, P95: 2 * time.Millisecond, P99: 3 * time.Millisecond, Memory: 1 << 20}})
	}},
}

// someTasks are a task that waits, and its subtasks.
func someTasks() []*pb.Task {
	return []*pb.Task{
		{Id: "release", Title: "Release the relaunch of the web site", State: pb.TaskState_TASK_STATE_WAITING, Priority: 5, DependsOn: []string{"api", "t-4711"},
			WaitsFor: &pb.TaskBrief{Id: "t-4711", State: pb.TaskState_TASK_STATE_FAILED}},
		{Id: "api", Title: "Write the API", State: pb.TaskState_TASK_STATE_CLAIMED, Holder: "builder-1", Fence: 4712, Priority: 7, MaxAttempts: 3, Attempts: 1,
			Progress: 0.4, Note: "handlers done, tests next", Parent: "release", DependsOn: []string{"schema"}, Creator: "lead", CreatedAt: before(3 * time.Hour),
			ClaimedAt: before(time.Hour), StaleAt: before(-time.Hour), Description: "As in docs/api.md."},
		{Id: "t-4711", Title: "Draw the pages", State: pb.TaskState_TASK_STATE_FAILED, Role: "designer", Priority: 5, MaxAttempts: 1, Attempts: 1,
			Parent: "release", Error: "no access to the drawings"},
		{Id: "schema", Title: "Write the schema", State: pb.TaskState_TASK_STATE_DONE, Holder: "builder-2", Priority: 5, Parent: "release", Progress: 1},
	}
}

func keys() []*pb.StateEntry {
	return []*pb.StateEntry{
		{Key: "plan/step", Type: pb.StateType_STATE_TYPE_INTEGER, Value: &pb.StateValue{Value: &pb.StateValue_IntegerValue{IntegerValue: 3}}, Version: 2, Revision: 4713, Author: "lead", ChangedAt: before(time.Minute)},
		{Namespace: "global", Key: "config", Type: pb.StateType_STATE_TYPE_JSON, Value: &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: `{"site":"https://www.example.org","languages":["de","en","fr","ja"]}`}},
			Version: 1, Revision: 4714, Author: "lead", Owner: "lead", TaskId: "t1", ChangedAt: before(26 * time.Hour)},
	}
}

func happened() []*pb.Event {
	return []*pb.Event{
		{Revision: 4711, Time: before(3 * time.Minute), Type: "message.sent", Source: "lead", Summary: "task_assignment to builder-1: Add login", Severity: pb.Severity_SEVERITY_INFO},
		{Revision: 4720, Time: before(time.Minute), Type: "message.dead", Source: "system", Severity: pb.Severity_SEVERITY_WARNING,
			Summary: "message 4712 is a dead letter in builder-1 after 3 attempts: exit status 1: tests fail in internal/web/login_test.go, in two places"},
	}
}

// followed prints items one at a time.
func followed[T proto.Message](c *command.Caller, cmd *cobra.Command, items []T, v output.View[T]) error {
	print, err := output.Follow(&c.Output, cmd, v)
	for _, item := range items {
		if err == nil {
			err = print(item)
		}
	}
	return err
}

// Each file has all tables at one width, with or without colour.
func TestTables_LookAsInTheGoldenFiles(t *testing.T) {
	for _, columns := range []int{80, 120, 200} {
		for _, color := range []string{"never", "always"} {
			var out bytes.Buffer
			for _, shown := range tables {
				c, cmd, _ := printer(output.FormatTable)
				c.Env.Columns, c.Global.Color = columns, color
				cmd.SetOut(&out)
				fmt.Fprintf(&out, "# %s\n", shown.name)
				apptest.NoError(t, shown.print(c, cmd, &out))
				fmt.Fprintln(&out)
			}
			golden(t, fmt.Sprintf("tables-%d%s.txt", columns, prompt.Either(color == "always", "-color", "")), out.String())
			plain := strings.NewReplacer("\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "").Replace(out.String())
			for line := range strings.Lines(plain) {
				if n := table.Width(strings.TrimSuffix(line, "\n")); n > columns && !strings.Contains(line, ", attempt ") {
					t.Errorf("%d cells at %d columns: %s", n, columns, line)
				}
			}
		}
	}
}

// golden compares a text with a file of testdata; -update writes the file.
func golden(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		apptest.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	apptest.NoError(t, err)
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s differs; after a wanted change run the test with -update (-file +text):\n%s", path, diff)
	}
}
