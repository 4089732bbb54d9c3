package top_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/cmd/brokerctl/table"
	"brokerd/cmd/brokerctl/top"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(start.Add(-d)) }

// hostile is a text that would change a terminal which shows it as it is.
const hostile = "\x1b[2J\x1b]0;owned\x07 red\x1b[31m\r\u202etxet \x00\u009b1m東京"

// frame is a session in which much is wrong.
func frame() *pb.WatchOverviewResponse {
	f := &pb.WatchOverviewResponse{
		Session: "default", Time: timestamppb.New(start), Revision: 4711,
		Totals: &pb.OverviewTotals{
			Waiting: 1234, Claimed: 3, Dead: 2, Agents: 4, LateAgents: 1, FailedAgents: 1, SentRate: 12.4,
			ProcessedRate: 11.8,
		},
		Findings: []*pb.Finding{
			{
				Severity: pb.FindingSeverity_FINDING_SEVERITY_ERROR, Subject: "mailbox role:painter",
				Since:   before(time.Hour),
				Summary: "3 messages wait in it, and no agent has the role painter",
				Reasons: []string{"the nearest role name is builder (2 agents)"},
				Calls: []*pb.Call{
					{Method: "/brokerd.v1.AdminService/MoveMessages", Request: `{"from":"role:painter","to":"role:builder"}`},
					{Method: "/brokerd.v1.DecisionService/Decide", Request: `{"id":"d-7"}`, Missing: []string{"until"}},
					{Method: "/brokerd.v1.AgentService/RegisterAgent", Agent: "painter-1", Program: []string{"paint"}},
					{Method: "/brokerd.v1.AdminService/Explain", Request: `{"role":"painter"}`},
				},
			},
			{
				Severity: pb.FindingSeverity_FINDING_SEVERITY_WARNING, Subject: "agent builder-2",
				Since:   before(90 * time.Second),
				Summary: "it is late: " + hostile,
			},
		},
		Agents: []*pb.OverviewAgent{
			{
				Name: "critic-1", State: "failed", Role: "critic", Status: pb.AgentStatus_AGENT_STATUS_ACTIVE,
				Health:      pb.Health_HEALTH_FAILED,
				SilentSince: before(5 * time.Minute), Waiting: 7,
			},
			{
				Name: "builder-1", State: "busy", Role: "builder", Status: pb.AgentStatus_AGENT_STATUS_ACTIVE,
				Health: pb.Health_HEALTH_OK,
				Claims: 2, Locks: 1, Activity: "running the tests of the login page",
			},
			{
				Name: "builder-2", State: "late", Role: "builder", Status: pb.AgentStatus_AGENT_STATUS_IDLE,
				Health:      pb.Health_HEALTH_LATE,
				SilentSince: before(time.Minute), Halted: true, Activity: hostile,
			},
			{Name: "lead", State: "completed", Role: "lead", Status: pb.AgentStatus_AGENT_STATUS_COMPLETED, Health: pb.Health_HEALTH_OK},
		},
		Mailboxes: []*pb.OverviewMailbox{
			{Mailbox: "builder-1", Waiting: 1200, Claimed: 2, Oldest: before(time.Minute)},
			{Mailbox: "critic-1", Waiting: 7, Dead: 1000, Oldest: before(2 * time.Hour)},
			{Mailbox: "role:painter", Waiting: 3, Oldest: before(time.Hour)},
			{Mailbox: "channel:news", Dead: 1},
		},
	}
	for i := range 40 {
		e := &pb.OverviewEvent{
			Revision: int64(4711 - i), Time: before(time.Duration(i) * time.Second),
			Severity: pb.Severity_SEVERITY_INFO,
			Type:     "message.sent", Source: "lead", Summary: fmt.Sprintf("message to builder-1: part %d", i),
		}
		switch i {
		case 2:
			e.Severity, e.Type, e.Summary = pb.Severity_SEVERITY_ERROR, "message.dead",
				"message 4700 is a dead letter: no compiler"
		case 3:
			e.Summary = hostile
		}
		f.Events = append(f.Events, e)
	}
	return f
}

// loaded has what the views load beside the frame, by view.
func loaded() map[int]any {
	dead := func(revision int64, box, subject, failure string) *pb.InboxItem {
		return &pb.InboxItem{
			Message: &pb.Message{Id: fmt.Sprint("id-", revision), Revision: revision, Sender: "lead", Subject: subject},
			Delivery: &pb.Delivery{Mailbox: box, Holder: "builder-1", Attempts: 3, MaxAttempts: 3,
				FinishedAt: before(time.Minute),
				History:    []*pb.Attempt{{Number: 3, Error: failure}}},
		}
	}
	locks := &pb.ListLocksResponse{
		Locks: []*pb.Lock{
			{Fence: 4100, Agent: "builder-1", Holder: "w1", Paths: []string{"src/"},
				Mode:      pb.LockMode_LOCK_MODE_EXCLUSIVE,
				GrantedAt: before(time.Hour), HeldUntil: before(-time.Hour), Waiting: 2, Reason: "the login page"},
			{Fence: 4000, Agent: "builder-2", Paths: []string{"docs/a.md", "docs/b.md"},
				Mode:      pb.LockMode_LOCK_MODE_SHARED,
				GrantedAt: before(2 * time.Minute), HeldUntil: before(-time.Minute)},
		},
		Tickets: []*pb.LockTicket{
			{Ticket: 4101, Agent: "builder-2", Paths: []string{"src/a.go"}, Position: 1, CreatedAt: before(time.Minute),
				Obstacles: []*pb.Obstacle{{Agent: "builder-1", Revision: 4100}}, Reason: hostile},
			{Ticket: 4102, Agent: "lead", Paths: []string{"src/a.go"}, Position: 2, CreatedAt: before(30 * time.Second),
				Obstacles: []*pb.Obstacle{{Agent: "builder-1", Revision: 4100},
					{Agent: "builder-2", Revision: 4101, Waiting: true}}},
		},
	}
	tokens := []*pb.GetTokenResponse{{
		Token: &pb.Token{Type: "review", Scope: "login", State: pb.TokenState_TOKEN_STATE_CONTESTED, Agent: "critic-1",
			Fence:     4200,
			GrantedAt: before(time.Minute), HeldUntil: before(-time.Hour), Waiting: 1},
		Tickets: []*pb.TokenTicket{{Ticket: 4201, Agent: "builder-1", Position: 1,
			CreatedAt: before(10 * time.Second)}},
	}}
	return map[int]any{
		4: []*pb.ThreadSummary{
			{
				ThreadId: "id-4500", Messages: 100, Participants: []string{"builder-1", "lead"},
				LastAt: before(time.Minute),
				FirstMessage: &pb.ThreadMessage{Id: "id-4500", Revision: 4500, Sender: "lead",
					Subject: "Which branch?"},
				LastMessage: &pb.ThreadMessage{Id: "id-4510", Revision: 4510, Sender: "builder-1", Subject: hostile},
				OpenQuestions: []*pb.OpenQuestion{{Id: "id-4500", Revision: 4500, Sender: "lead",
					Deadline: before(time.Minute), Overdue: true}},
			},
			{
				ThreadId: "release", Messages: 1, Participants: []string{"lead", "role:builder"},
				LastAt: before(time.Hour),
				FirstMessage: &pb.ThreadMessage{Id: "id-4400", Revision: 4400, Sender: "lead",
					Subject: "Release on Friday"},
				LastMessage: &pb.ThreadMessage{Id: "id-4400", Revision: 4400, Sender: "lead",
					Subject: "Release on Friday"},
			},
		},
		5: []*pb.InboxItem{
			dead(4700, "builder-1", "Add a login page", "no compiler"),
			dead(4690, "role:painter", hostile, "exit status 1: "+hostile),
		},
		6: top.Held(locks, tokens),
		7: top.Work(
			[]*pb.Task{
				{Id: "build", Title: "Build the page", State: pb.TaskState_TASK_STATE_CLAIMED, Holder: "builder-1",
					Progress:  0.4,
					ClaimedAt: before(time.Hour), StaleAt: before(-time.Hour)},
				{Id: "lint", Title: "Lint", State: pb.TaskState_TASK_STATE_FAILED, Role: "builder",
					CreatedAt: before(time.Hour)},
				{Id: "test", Title: "Test the page", State: pb.TaskState_TASK_STATE_WAITING,
					CreatedAt: before(time.Hour),
					WaitsFor:  &pb.TaskBrief{Id: "build"}},
				{Id: "ship", Title: hostile, State: pb.TaskState_TASK_STATE_WAITING, CreatedAt: before(time.Hour),
					WaitsFor: &pb.TaskBrief{Id: "test"}},
			},
			[]*pb.Vote{{Id: "v-4300", Title: "Deploy today?", Opener: "lead", State: pb.VoteState_VOTE_STATE_OPEN,
				Ballots: 1, Electors: 3,
				OpenedAt: before(time.Minute), Deadline: before(-23 * time.Hour),
				Tally: []*pb.VoteTally{{Option: "yes"}, {Option: "no"}}}},
			[]*pb.Decision{{Id: "d-4301", Kind: pb.DecisionKind_DECISION_KIND_REVIEW,
				State: pb.DecisionState_DECISION_STATE_ESCALATED,
				Title: "review of login", Opener: "builder-1", Agent: "critic-1", Round: 2,
				OpenedAt: before(time.Hour),
				Verdicts: []string{"approve", "revise", "reject"}}},
			[]*pb.Handoff{{Id: "h-4302", State: pb.HandoffState_HANDOFF_STATE_PENDING, Title: "The login page",
				From:   "builder-1",
				ToRole: "builder", Items: 3, Checked: 1, CreatedAt: before(time.Minute)}},
			[]*pb.Blocker{{Id: "b-4303", State: pb.BlockerState_BLOCKER_STATE_OPEN, Reason: "no access to the database",
				Agent:    "builder-2",
				Severity: pb.BlockerSeverity_BLOCKER_SEVERITY_CRITICAL, RaisedAt: before(time.Minute)}}),
	}
}

// screens are the golden screens: the keys that lead to each from the first view with its data.
var screens = []struct {
	name string
	keys []string
	and  func(s *screen)
}{
	{name: "attention", keys: []string{"1"}},
	{name: "team", keys: []string{"2"}},
	{name: "queues", keys: []string{"3"}},
	{name: "timeline", keys: []string{"4"}},
	{name: "conversations", keys: []string{"5"}},
	{name: "dead letters", keys: []string{"6"}},
	{name: "locks and turns", keys: []string{"7"}},
	{name: "work", keys: []string{"8"}},
	{name: "a finding with its calls", keys: []string{"1", "enter"}},
	{name: "an agent with its details", keys: []string{"2", "down", "enter"}, and: func(s *screen) {
		s.send(top.OpenedMsg("builder-1", "agent", &pb.GetAgentResponse{
			Agent: &pb.Agent{
				Name: "builder-1", Role: "builder", Capabilities: []string{"go", "sql"},
				Labels: map[string]string{"b": "2", "a": hostile},
				Lease:  durationpb.New(time.Minute), Health: pb.Health_HEALTH_LATE, LastSeen: before(time.Minute),
				Progress: 0.4,
				Description: "builds the pages\nand their tests, and keeps the style of the existing pages while it does so\n" +
					hostile,
			},
			Holdings: &pb.Holdings{Claims: []*pb.OpenClaim{{ClaimId: "4600.1", Subject: hostile},
				{ClaimId: "4601.1", Subject: "Tests"}}},
		}))
	}},
	{name: "a filter, while it is typed", keys: []string{"2", "/", "B", "u", "i"}},
	{name: "agents by state, reversed", keys: []string{"2", "s", "s", "s", "S"}},
	{name: "the keys", keys: []string{"?"}},
	{name: "the sessions", keys: []string{"c"}, and: func(s *screen) {
		s.send(top.SessionsMsg(&pb.Session{Name: "api"}, &pb.Session{Name: "default"},
			&pb.Session{Name: "old", State: pb.SessionState_SESSION_STATE_CLOSED}))
	}},
	{name: "marked dead letters", keys: []string{"6", "x"}},
	{name: "the menu of actions", keys: []string{"2", "down", "a"}},
	{name: "a field", keys: []string{"7", "a", "1", "o", "l", "d"}},
	{name: "a required field is empty", keys: []string{"7", "a", "1", "enter"}},
	{name: "a choice", keys: []string{"8", "end", "up", "up", "a", "1", "right"}},
	{name: "a confirmation", keys: []string{"7", "a", "1", "o", "l", "d", "enter"}},
	{name: "the connection is broken", keys: []string{"3"}, and: func(s *screen) {
		s.send(top.LostMsg(errors.New("gone")))
		s.now = s.now.Add(12 * time.Second)
	}},
	{name: "nothing", keys: []string{"1"}, and: func(s *screen) {
		s.send(top.FrameMsg(&pb.WatchOverviewResponse{Session: "default", Time: timestamppb.New(start),
			Revision: 4712}))
	}},
	{name: "a view that cannot be loaded", keys: []string{"8"}, and: func(s *screen) {
		s.send(top.LoadedMsg(7, nil, errors.New("the broker is too busy\x1b[2J")))
	}},
}

func full(t *testing.T, width, height int, color, observer bool) *screen {
	t.Helper()
	s := newScreen(t, width, height, color, observer, nil)
	s.send(top.FrameMsg(frame()))
	for view, data := range loaded() {
		s.send(top.LoadedMsg(view, data, nil))
	}
	return s
}

func TestScreen_IsTheGoldenOne(t *testing.T) {
	for name, c := range map[string]struct {
		width, height int
		color         bool
	}{
		"80x24": {80, 24, false}, "120x40": {120, 40, false}, "200x60": {200, 60, false},
		"120x40-color": {120, 40, true},
	} {
		var all strings.Builder
		for _, g := range screens {
			s := full(t, c.width, c.height, c.color, false)
			s.press(g.keys...)
			if g.and != nil {
				g.and(s)
			}
			shown := s.state().Screen()
			if lines := strings.Split(shown, "\n"); len(lines) != c.height {
				t.Errorf("%s, %s: %d lines", name, g.name, len(lines))
			}
			fmt.Fprintf(&all, "# %s\n%s\n", g.name, shown)
			checkText(t, name+", "+g.name, painted.ReplaceAllString(shown, ""), c.width)
		}
		file := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(all.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), all.String()); diff != "" {
			t.Errorf("%s (-want +got), -update writes it:\n%s", name, diff)
		}
	}
}

// painted are the escape codes of colours.
var painted = regexp.MustCompile("\x1b\\[[0-9;]*m")

// checkText wants a screen without control characters, and no line wider than the terminal.
func checkText(t *testing.T, name, shown string, width int) {
	t.Helper()
	for line := range strings.Lines(shown) {
		line = strings.TrimSuffix(line, "\n")
		if line != prompt.Clean(line) {
			t.Errorf("%s: control characters in %q", name, line)
		}
		if n := table.Width(line); n > width {
			t.Errorf("%s: a line of %d cells: %q", name, n, line)
		}
	}
}

func TestScreen_FitsEveryTerminal(t *testing.T) {
	for width := 1; width < 90; width += 4 {
		for height := 1; height < 30; height += 3 {
			for _, g := range screens {
				s := full(t, width, height, false, false)
				s.press(g.keys...)
				shown := s.state().Screen()
				if lines := strings.Split(shown, "\n"); len(lines) != height {
					t.Fatalf("%s at %d×%d: %d lines", g.name, width, height, len(lines))
				}
			}
		}
	}
}
