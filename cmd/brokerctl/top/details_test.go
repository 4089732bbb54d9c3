package top_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"brokerd/client"
	"brokerd/cmd/brokerctl/top"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/testkit"
)

func TestSessions_TheChosenOneIsShown(t *testing.T) {
	s := newStage(t)
	dead(s)
	created, err := pb.NewSessionServiceClient(s.operator()).CreateSession(s.ctx,
		&pb.CreateSessionRequest{Name: "other"})
	must(s, created, err)
	other := pb.NewMessageServiceClient(s.broker.In("other", ""))
	sent, err := other.SendMessages(s.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Role{Role: "painter"}}, Subject: "Paint it"}}})
	must(s, sent, err)
	s.press("3")
	s.refresh()
	s.press("x", "enter")
	late := s.frame() // of the session before
	s.press("c", "down", "enter")
	equal(s, "session", s.session, "other")
	s.wants("connecting")
	s.screen.send(late)
	s.wants("connecting")
	s.refresh()
	s.wants("other  0 agents")
	s.wants("role:painter")
	if s.shows("builder-1") {
		t.Errorf("the mailboxes of the session before:\n%s", s.state().Screen())
	}
	s.press("enter")
	s.wants("message (pending) from system: Paint it")
	s.press("c", "esc")
	s.wants("Paint it")
	s.press("c", "home", "enter")
	s.refresh()
	s.wants("default  2 agents")
}

func TestQueues_ShowTheOldestWaitingFirst(t *testing.T) {
	s := newStage(t)
	for _, subject := range []string{"first", "second", "third"} {
		s.send(s.lead, &pb.Message{Target: to("builder-1"), Subject: subject})
	}
	claimed, err := pb.NewMessageServiceClient(s.worker).ClaimMessages(s.ctx, &pb.ClaimMessagesRequest{Max: 1})
	must(s, claimed, err)
	s.press("3")
	s.refresh()
	s.press("enter")
	s.wants("its unfinished messages, the oldest first")
	shown := s.state().Screen()
	claim := strings.Index(shown, "message (claimed) from lead: first")
	second := strings.Index(shown, "(pending) from lead: second")
	if third := strings.Index(shown, ": third"); claim < 0 || second < claim || third < second {
		t.Errorf("not in the order of arrival:\n%s", shown)
	}
}

func TestTimeline_OpensWhatAnEventIsAbout(t *testing.T) {
	for _, c := range []struct {
		event, want string
		arrange     func(s *stage)
	}{
		{"lock.granted", "the locks on src/", contested},
		{"token.granted", "token review/login", func(s *stage) { s.turn(s.worker) }},
		{"message.sent", "message ", question},
		{"message.dead", "message ", func(s *stage) { s.die("one", "no compiler") }},
		{"task.claimed", "task build", (*stage).tasks},
		{"vote.opened", "vote ", (*stage).openVote},
		{"decision.opened", "decision ", func(s *stage) { s.review(nil) }},
		{"handoff.created", "handoff ", (*stage).openHandoff},
		{"blocker.encountered", "blocker ", (*stage).raise},
		{"agent.registered", "agent builder-1", func(*stage) {}},
	} {
		s := newStage(t)
		c.arrange(s)
		s.press("4")
		s.refresh()
		s.press("/")
		s.write(c.event)
		s.press("enter", "enter", "end")
		if shown := s.state().Details(); !slices.ContainsFunc(shown, func(title string) bool {
			return strings.HasPrefix(title, c.want)
		}) {
			t.Errorf("%s: no %q in %q", c.event, c.want, shown)
		}
	}
}

func TestRun_RefusesAnAgentBeforeItOpensTheScreen(t *testing.T) {
	s := newStage(t)
	var out bytes.Buffer
	err := top.Run(s.ctx, strings.NewReader(""), &out, top.Options{Now: time.Now},
		func(lost func(error, time.Duration)) (*client.Client, error) {
			return dial(t, client.WithAddress(s.broker.Socket()), client.WithAgent("lead"), client.WithRetryNotice(lost)), nil
		})
	if testkit.Reason(err) != "NOT_FOR_AGENTS" || out.Len() > 0 {
		t.Errorf("%v, and the terminal received %q", err, out.String())
	}
}
