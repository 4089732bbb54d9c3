package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/work"
	pb "brokerd/gen/brokerd/v1"
)

// hostile is a title that would break a table, a list and a heading, if it were not escaped.
const hostile = "`login` | *page*\n\n# and | <b>more</b> | [x](http://y) _z_ \\ ~~s~~\r\n| --- |\x1b[2J"

func TestReport_LooksAsInTheGoldenFile(t *testing.T) {
	task := func(id, parent string, state pb.TaskState, after ...string) *pb.Task {
		return &pb.Task{Id: id, Title: "Build " + id, Parent: parent, State: state, DependsOn: after, CreatedAt: before(time.Hour)}
	}
	api, page, tests := task("api", "site", pb.TaskState_TASK_STATE_CLAIMED), task("page", "site", pb.TaskState_TASK_STATE_WAITING, "api"),
		task("tests", "api", pb.TaskState_TASK_STATE_DONE)
	api.Holder, api.Progress, api.Note = "builder-1", 0.4, "two of | five routes"
	page.Title, page.WaitsFor = hostile, &pb.TaskBrief{Id: "api", State: pb.TaskState_TASK_STATE_CLAIMED}
	tests.Holder, tests.Progress = "builder_2", 1
	tasks := []*pb.Task{page, tests, api, task("site", "", pb.TaskState_TASK_STATE_READY)}
	open := func(*pb.Task) bool { return true }
	votes := []*pb.Vote{
		{Id: "v-9", Title: hostile, State: pb.VoteState_VOTE_STATE_OPEN, Tally: []*pb.VoteTally{{Option: "a|b", Ballots: 1}, {Option: "c"}},
			Ballots: 1, Electors: 3, Opener: "lead", OpenedAt: before(time.Minute), Deadline: before(-time.Hour)},
		{Id: "v-5", Title: "Which database?", State: pb.VoteState_VOTE_STATE_CLOSED, Outcome: pb.VoteOutcome_VOTE_OUTCOME_WINNER,
			Winner: "SQLite", Tally: []*pb.VoteTally{{Option: "SQLite", Ballots: 2}, {Option: "PostgreSQL", Ballots: 1}},
			Ballots: 3, Electors: 3, Opener: "lead", OpenedAt: before(2 * time.Hour), ClosedAt: before(time.Hour)},
	}
	r := &work.Report{
		Session: &pb.Session{Name: "web_site", Description: hostile},
		Agents: work.ReportPart[*pb.Agent]{Items: []*pb.Agent{
			{Name: "builder-1", Role: "builder", Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, Health: pb.Health_HEALTH_OK, State: "busy", Activity: hostile,
				TaskId: "api", Progress: 0.4, LastSeen: before(time.Second)},
			{Name: "lead", Status: pb.AgentStatus_AGENT_STATUS_IDLE, Health: pb.Health_HEALTH_FAILED, State: "failed", LastSeen: before(time.Hour)},
		}},
		Tasks: work.Choose(tasks, 0, open, (*pb.Task).GetCreatedAt),
		Decisions: work.ReportPart[*pb.Decision]{Items: []*pb.Decision{
			{Id: "d-3", Kind: pb.DecisionKind_DECISION_KIND_REVIEW, State: pb.DecisionState_DECISION_STATE_OPEN, Opener: "builder-1", Role: "critic",
				Title: hostile, Scope: "login", Round: 2, MaxRounds: 3, OpenedAt: before(time.Hour), Deadline: before(-time.Hour)},
		}},
		Blockers: work.ReportPart[*pb.Blocker]{Items: []*pb.Blocker{
			{Id: "b-7", State: pb.BlockerState_BLOCKER_STATE_RESOLVED, Severity: pb.BlockerSeverity_BLOCKER_SEVERITY_HIGH, Agent: "builder-1",
				Reason: hostile, Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Role{Role: "dba"}}, TaskId: "api",
				RaisedAt: before(time.Hour), AcknowledgedAt: before(50 * time.Minute), AcknowledgedBy: []string{"dba-1"},
				ResolvedAt: before(30 * time.Minute), ResolvedBy: "dba-1", TimeBlocked: durationpb.New(30 * time.Minute)},
		}},
		Handoffs: work.ReportPart[*pb.Handoff]{Items: []*pb.Handoff{
			{Id: "h-8", State: pb.HandoffState_HANDOFF_STATE_ACCEPTED, Title: hostile, From: "architect", ToRole: "builder", Items: 3, Checked: 2,
				CreatedAt: before(time.Hour), SettledAt: before(time.Minute), SettledBy: "builder-1", Notes: "ok | thanks"},
		}},
		Votes: work.Choose(votes, 1, func(v *pb.Vote) bool { return v.GetClosedAt() == nil }, (*pb.Vote).GetOpenedAt),
		Decided: work.ReportPart[*pb.Decision]{Items: []*pb.Decision{
			{Id: "d-2", Title: "Plan of the login", Verdict: "approve", ChangedAt: before(time.Hour),
				Rounds: []*pb.Verdict{{Verdict: "approve", DecidedBy: "lead", Reason: hostile}}},
		}},
		Announcements: []*pb.Message{{Sender: "lead", Subject: "We use SQLite", CreatedAt: before(time.Minute)}},
	}
	c, _, _ := printer(output.FormatTable)
	var text strings.Builder
	r.Write(c, &text)
	text.WriteString("\n---\n\n")
	(&work.Report{Session: &pb.Session{Name: "empty", ClosedAt: before(time.Hour)}}).Write(c, &text)
	golden(t, "report.md", text.String())
	for line := range strings.Lines(text.String()) {
		if strings.ContainsAny(line, "\x1b\r") {
			t.Errorf("a control character in %q", line)
		}
	}
}

// The tables have a fixed number of cells in each row, whatever the texts are.
func TestReport_TextsOfAgentsBreakNoTable(t *testing.T) {
	cells := func(line string) int { return len(regexp.MustCompile(`(^|[^\\])(\\\\)*\|`).FindAllString(line, -1)) }
	table := work.NewMarkdownTable("A", "B")
	table.Row(hostile, hostile+`\`)
	table.Row(`\|`, "|")
	var text strings.Builder
	table.Write(&text)
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) != 4 {
		t.Errorf("the table has %d lines, want 4:\n%s", len(lines), text.String())
	}
	for _, line := range lines {
		if cells(line) != 3 {
			t.Errorf("%d borders of cells, want 3: %s", cells(line), line)
		}
	}
}

func TestChoose_PrefersUnfinishedThenNewest(t *testing.T) {
	all := func() []*pb.Vote {
		var votes []*pb.Vote
		for i, open := range []bool{true, false, false, true, false} {
			v := &pb.Vote{Id: string(rune('a' + i)), OpenedAt: timestamppb.New(time.Unix(int64(i), 0))}
			if !open {
				v.ClosedAt = v.OpenedAt
			}
			votes = append(votes, v)
		}
		return votes
	}
	for limit, want := range map[int]string{0: "abcde", 1: "d", 2: "ad", 3: "ade", 4: "acde", 9: "abcde"} {
		s := work.Choose(all(), limit, func(v *pb.Vote) bool { return v.GetClosedAt() == nil }, (*pb.Vote).GetOpenedAt)
		got := ""
		for _, v := range s.Items {
			got += v.GetId()
		}
		if got != want || s.Omitted != 5-len(want) {
			t.Errorf("limit %d: %s and %d more, want %s", limit, got, s.Omitted, want)
		}
	}
}

func TestReport_HasTheFactsOfEachKind(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "b1/builder", "b2/builder")
	must0(t, "--agent", "b1", "agent", "heartbeat", "--activity", "Writing | the page", "--status", "active")
	must0(t, "--agent", "lead", "task", "create", "Build the site", "--id", "site")
	must0(t, "--agent", "lead", "task", "create", "Write the API", "--id", "api", "--parent", "site")
	must0(t, "--agent", "lead", "task", "create", "Write the page", "--id", "page", "--parent", "site", "--depends-on", "api")
	must0(t, "--agent", "b1", "task", "claim", "api")
	must0(t, "--agent", "b1", "blocker", "raise", "No access | to the database", "--task", "api", "--to", "lead")
	vote := at(t, fields(t, "--agent", "lead", "vote", "open", "Deploy?", "yes", "no", "--to", "b1"), "id").(string)
	must0(t, "--agent", "b1", "vote", "cast", vote, "yes")
	must0(t, "--agent", "lead", "send", "everyone", "We use SQLite", "--type", "decision_announcement")
	text := must0(t, "report")
	for _, want := range []string{
		"# Session default\n", "| b1 | builder | busy | Writing \\| the page |",
		"- [ ] **site** Build the site", "  - [ ] **api** Write the API — blocked, b1, No access \\| to the database",
		"  - [ ] **page** Write the page — waiting, waits for api", "No decision is open.",
		"| open | medium | b1 | No access \\| to the database |", "There are no handoffs.",
		"| " + vote + " | closed | Deploy? | yes wins | yes 1, no 0 | 1 of 1 | lead |",
		"| We use SQLite | announced | lead |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "announced"); n != 1 {
		t.Errorf("%d announcements, want that of the lead alone:\n%s", n, text)
	}
	page := fields(t, "report")
	for _, path := range [][]any{
		{"session", "name"}, {"agents", 0, "name"}, {"tasks", 0, "id"}, {"blockers", 0, "reason"}, {"votes", 0, "winner"},
		{"announcements", 0, "subject"},
	} {
		if v := at(t, page, path...); v == nil || v == "" {
			t.Errorf("the JSON has no %v", path)
		}
	}
	if at(t, fields(t, "report", "--limit", "1"), "omitted").(interface{ String() string }).String() != "4" { // agents and tasks
		t.Errorf("--limit 1 omits %v", at(t, fields(t, "report", "--limit", "1"), "omitted"))
	}
	if got := ctl(t, "report", "--limit", "-1"); got.code != problem.ExitUsage {
		t.Errorf("a negative limit: %+v", got)
	}
}
