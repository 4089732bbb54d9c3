package browsertest

import (
	"slices"
	"testing"

	pb "brokerd/gen/brokerd/v1"
)

// A sight is what a view shows: rows that have texts, in any order.
type sight [][]string

// A shown view shows sights, and after a change others.
type shownView struct {
	view   string
	sight  sight
	change func(m *team)
	then   sight
}

var shownViews = []shownView{
	{
		view: "attention", sight: sight{{"builder-1", "3 dead letters"}, {"role:designer", "no agent has the role"}},
		change: func(m *team) { m.send("lead", toRole("bulider", "Add a test")) },
		then:   sight{{"role:bulider", "builder"}},
	},
	{
		view: "team", sight: sight{{"lead"}, {"builder-1", "builder"}, {"builder-2"}, {"reviewer"}},
		change: func(m *team) {
			m.Registered("tester-1", "tester")
			call(m, "tester-1", pb.NewAgentServiceClient, pb.AgentServiceClient.Heartbeat,
				&pb.HeartbeatRequest{Activity: new("runs the session tests")})
		},
		then: sight{{"tester-1", "runs the session tests"}},
	},
	{
		view: "queues", sight: sight{{"role:builder", "2"}, {"role:designer", "1"}, {"builder-1", "3"}},
		change: func(m *team) { m.send("lead", toRole("tester", "Run the tests"), toRole("tester", "And these")) },
		then:   sight{{"role:tester", "2"}},
	},
	{
		view: "timeline", sight: sight{{"The staging server does not answer"}, {"blocker.encountered"}},
		change: func(m *team) { m.publish("A test publishes this") },
		then:   sight{{"A test publishes this", "lead"}},
	},
	{
		view: "conversations", sight: sight{{"bcrypt or argon2id?", "open", "builder-2"}, {"The login form is complete"}},
		change: func(m *team) {
			question := m.question("bcrypt or argon2id?")
			call(m, "reviewer", pb.NewMessageServiceClient, pb.MessageServiceClient.Reply,
				&pb.ReplyRequest{Id: question, Message: &pb.Message{Subject: "It is argon2id"}})
			m.ask("builder-1", "lead", "Which port?")
		},
		then: sight{{"Which port?", "open", "builder-1"}, {"bcrypt or argon2id?", "It is argon2id"}},
	},
	{
		view: "dead", sight: sight{
			{"Port the old importer", "no such repository: importer", "builder-1", "1, fatal"},
			{"Write the migration", "test database is locked"}, {"Rename the tables"},
		},
		change: func(m *team) { m.kill("reviewer", "Read the plan", "no such file: plan.md") },
		then:   sight{{"Read the plan", "no such file: plan.md", "reviewer"}},
	},
	{
		view: "locks", sight: sight{
			{"src/auth/", "1"}, {"(all below)", "builder-1", "contested"}, {"review/login", "reviewer", "contested"},
		},
		change: func(m *team) { m.lock("lead", "docs/plan.md") },
		then:   sight{{"plan.md", "lead"}},
	},
	{
		view: "work", sight: sight{
			{"api", "failed"}, {"form", "claimed", "builder-2"}, {"release", "waiting"}, {"Which database?", "1 of 2"},
			{"Review the login form"}, {"The importer"}, {"The staging server does not answer"},
		},
		change: func(m *team) {
			call(m, "builder-2", pb.NewTaskServiceClient, pb.TaskServiceClient.UpdateTask,
				&pb.UpdateTaskRequest{Id: "form", BlockChange: &pb.UpdateTaskRequest_Block{Block: "waits for the colours"}})
		},
		then: sight{{"form", "blocked", "waits for the colours"}},
	},
}

func TestViews_ShowWhatTheAPISaysAndFollowIt(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.work()
	p := open(m, operator, "attention")
	for _, v := range shownViews {
		t.Run(v.view, func(t *testing.T) {
			m, p := m.with(t), p.with(t)
			p.show(v.view)
			p.sees(v.sight)
			v.change(m)
			p.sees(v.then)
		})
	}
}

// sees waits until the view has a row for each line of a sight.
func (p *tab) sees(s sight) {
	p.t.Helper()
	for _, texts := range s {
		p.await(`all('[data-view] [data-row]').some((r) => a.every((text) => has(r, text))) || (reach(a[0]), false)`, texts)
	}
}

// question returns the id of the message with a subject.
func (m *team) question(subject string) string {
	m.t.Helper()
	out := call(m, "", pb.NewMessageServiceClient, pb.MessageServiceClient.ListThreads, &pb.ListThreadsRequest{Open: true})
	for _, thread := range out.GetThreads() {
		if thread.GetFirstMessage().GetSubject() == subject {
			return thread.GetThreadId()
		}
	}
	m.t.Fatalf("there is no open question %q", subject)
	return ""
}

func TestObserver_SeesNoButton(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.work()
	count := func(level pb.CredentialAccess) (shown []int) {
		p := open(m, level, "attention")
		for _, v := range shownViews {
			p.show(v.view)
			p.sees(v.sight)
			n := 0
			tally := func() { n += value[int](p, `all('button.action').filter(shown).length`) }
			tally()
			p.openRows(8, tally)
			shown = append(shown, n)
		}
		return shown
	}
	for i, n := range count(operator) {
		if name := shownViews[i].view; n == 0 && name != "timeline" && name != "queues" {
			t.Errorf("%s has no button for an operator", name)
		}
	}
	if got := count(observer); slices.Max(got) > 0 {
		t.Errorf("the views show an observer %v buttons", got)
	}
}
