package top_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// question sends a question of lead to builder-1.
func question(s *stage) {
	s.id = s.send(s.lead, &pb.Message{Target: to("builder-1"), Subject: "Which branch?", RequiresResponse: true})
}

func halted(s *stage) bool {
	r, err := pb.NewAgentServiceClient(s.operator()).GetAgent(s.ctx, &pb.GetAgentRequest{Name: "builder-1"})
	return must(s, r, err).GetAgent().GetHalted()
}

func dead(s *stage) {
	s.id = s.die("one", "no compiler")
	s.die("two", "no disk")
	s.die("three", "no compiler")
}

// contested makes builder-1 hold a lock for which lead waits.
func contested(s *stage) {
	s.lock(s.worker, "src/")
	s.lock(s.lead, "src/a.go")
}

// every names each action of each view: the keys of the view, a text of the row, the label.
var every = []struct {
	view, row, label string
	below            bool // the row is the second one of its tree
	fields           map[string]string
	arrange          func(s *stage)
	counted          string
	check            func(s *stage)
}{
	{
		view: "1", row: "builder-1", label: `RedriveDeadLetters {"mailbox":"builder-1"}`, arrange: dead,
		check: func(s *stage) { equal(s, "delivery", s.delivery(s.id), pb.DeliveryState_DELIVERY_STATE_PENDING) },
	},
	{
		view: "2", row: "builder-1", label: "message", fields: map[string]string{"subject": "Hello",
			"text": "How are you?"},
		check: func(s *stage) { s.has(s.inbox(s.worker), "message|Hello|How are you?") },
	},
	{
		view: "2", row: "builder-1", label: "nudge", fields: map[string]string{"reason": "hurry"},
		check: func(s *stage) { s.has(s.inbox(s.worker), "nudge|hurry|") },
	},
	{
		view: "2", row: "builder-1", label: "halt", fields: map[string]string{"reason": "wait"},
		check: func(s *stage) { equal(s, "halted", halted(s), true) },
	},
	{
		view: "2", row: "builder-1", label: "resume",
		arrange: func(s *stage) { s.send(s.operator(), &pb.Message{Target: to("builder-1"), Type: "halt"}) },
		check:   func(s *stage) { equal(s, "halted", halted(s), false) },
	},
	{
		view: "2", row: "builder-1", label: "terminate", fields: map[string]string{"reason": "done"},
		check: func(s *stage) { s.has(s.inbox(s.worker), "terminate|done|") },
	},
	{
		view: "3", row: "builder-1", label: "redrive all that match", fields: map[string]string{"error": "COMPILER"},
		arrange: dead,
		counted: "This would redrive 2 dead letters.",
		check: func(s *stage) {
			equal(s, "delivery", s.delivery(s.id), pb.DeliveryState_DELIVERY_STATE_PENDING)
			equal(s, "notice", s.state().Notice(), "redrove 2 dead letters")
		},
	},
	{
		view: "3", row: "builder-1", label: "move messages",
		fields: map[string]string{"to": "lead", "reason": "it is away"}, arrange: question,
		check: func(s *stage) { s.has(s.inbox(s.lead), "message|Which branch?|") },
	},
	{
		view: "3", row: "builder-1", label: "cancel a message", arrange: question,
		check: func(s *stage) { equal(s, "delivery", s.delivery(s.id), pb.DeliveryState_DELIVERY_STATE_CANCELLED) },
	},
	{
		view: "5", row: "branch", label: "reply", fields: map[string]string{"text": "main"}, arrange: question,
		check: func(s *stage) {
			s.has(s.inbox(s.lead), "message|Re: Which branch?|main")
			equal(s, "open questions", len(s.thread().GetOpenQuestions()), 0)
		},
	},
	{
		view: "5", row: "branch", label: "send", fields: map[string]string{"to": "builder-1", "subject": "Answer it",
			"text": "please"},
		arrange: question,
		check: func(s *stage) {
			s.has(s.inbox(s.worker), "message|Answer it|please")
			equal(s, "messages", s.thread().GetMessages(), 2)
		},
	},
	{
		view: "5", row: "branch", label: "resend", arrange: question,
		check: func(s *stage) { equal(s, "notice", s.state().Notice(), "redelivered to 1 mailbox") },
	},
	{
		view: "5", row: "branch", label: "resolve", fields: map[string]string{"outcome": "main it is"},
		arrange: question,
		check:   func(s *stage) { equal(s, "outcome", s.thread().GetOutcome(), "main it is") },
	},
	{
		view: "6", row: "one", label: "redrive this dead letter", arrange: dead,
		check: func(s *stage) { equal(s, "delivery", s.delivery(s.id), pb.DeliveryState_DELIVERY_STATE_PENDING) },
	},
	{
		view: "6", row: "one", label: "purge this dead letter", arrange: dead,
		check: func(s *stage) { equal(s, "delivery", s.delivery(s.id), pb.DeliveryState_DELIVERY_STATE_CANCELLED) },
	},
	{
		view: "6", row: "two", label: "redrive all that match", fields: map[string]string{"error": "compiler"},
		arrange: dead,
		counted: "This would redrive 2 dead letters.",
		check:   func(s *stage) { equal(s, "delivery", s.delivery(s.id), pb.DeliveryState_DELIVERY_STATE_PENDING) },
	},
	{
		view: "6", row: "two", label: "purge all that match", fields: map[string]string{"mailbox": ""}, arrange: dead,
		counted: "This would purge 3 dead letters.",
		check:   func(s *stage) { equal(s, "delivery", s.delivery(s.id), pb.DeliveryState_DELIVERY_STATE_CANCELLED) },
	},
	{
		view: "7", row: "src/", label: "force release", fields: map[string]string{"reason": "it is stuck"},
		arrange: contested,
		check:   func(s *stage) { equal(s, "holder", s.locks().GetLocks()[0].GetAgent(), "lead") },
	},
	{
		view: "7", row: "src/", label: "force release all of builder-1",
		fields:  map[string]string{"reason": "it is away"},
		arrange: func(s *stage) { s.lock(s.worker, "docs/"); contested(s) },
		check: func(s *stage) {
			equal(s, "locks", len(s.locks().GetLocks()), 1)
			equal(s, "holder", s.locks().GetLocks()[0].GetAgent(), "lead")
		},
	},
	{
		view: "7", row: "1. src/a.go", below: true, label: "end the wait",
		fields: map[string]string{"reason": "not now"}, arrange: contested,
		check: func(s *stage) { equal(s, "tickets", len(s.locks().GetTickets()), 0) },
	},
	{
		view: "7", row: "review/login", below: true, label: "end the wait",
		fields:  map[string]string{"reason": "not now"},
		arrange: func(s *stage) { s.turn(s.worker); s.turn(s.lead) },
		check: func(s *stage) {
			equal(s, "owner", s.token().GetToken().GetAgent(), "builder-1")
			equal(s, "tickets", len(s.token().GetTickets()), 0)
		},
	},
	{
		view: "7", row: "review/login", label: "revoke", fields: map[string]string{"reason": "it is stuck"},
		arrange: func(s *stage) { s.turn(s.worker) },
		check: func(s *stage) {
			equal(s, "state", s.token().GetToken().GetState(), pb.TokenState_TOKEN_STATE_AVAILABLE)
		},
	},
	{
		view: "8", row: "Build", label: "retry",
		arrange: func(s *stage) {
			s.tasks()
			r, err := pb.NewTaskServiceClient(s.worker).FailTask(s.ctx,
				&pb.FailTaskRequest{Id: "build", Fatal: true, Error: "no"})
			must(s, r, err)
		},
		check: func(s *stage) { equal(s, "state", s.task("build").GetState(), pb.TaskState_TASK_STATE_READY) },
	},
	{
		view: "8", row: "Build", label: "release", fields: map[string]string{"reason": "it is away"},
		arrange: (*stage).tasks,
		check:   func(s *stage) { equal(s, "state", s.task("build").GetState(), pb.TaskState_TASK_STATE_READY) },
	},
	{
		view: "8", row: "Build", label: "cancel", fields: map[string]string{"reason": "not needed"},
		arrange: (*stage).tasks,
		check: func(s *stage) {
			equal(s, "state", s.task("build").GetState(), pb.TaskState_TASK_STATE_CANCELLED)
			equal(s, "state of the other", s.task("test").GetState(), pb.TaskState_TASK_STATE_WAITING)
		},
	},
	{
		view: "8", row: "Build", label: "cancel", fields: map[string]string{"tasks that depend on it": "cancel too"},
		arrange: (*stage).tasks,
		check: func(s *stage) {
			equal(s, "state of the other", s.task("test").GetState(), pb.TaskState_TASK_STATE_CANCELLED)
		},
	},
	{
		view: "8", row: "Deploy?", label: "vote", fields: map[string]string{"elector": "lead", "option": "no",
			"reason": "it is Friday"},
		arrange: (*stage).openVote,
		check: func(s *stage) {
			ballots := s.vote().GetBallots()
			n := slices.IndexFunc(ballots, func(b *pb.Ballot) bool { return b.GetAgent() == "lead" })
			equal(s, "ballot", ballots[n].GetOption()+", "+ballots[n].GetReason(), "no, it is Friday")
		},
	},
	{
		view: "8", row: "Deploy?", label: "close", fields: map[string]string{"reason": "too late"},
		arrange: (*stage).openVote,
		check:   func(s *stage) { equal(s, "reason", s.vote().GetVote().GetCloseReason(), "too late") },
	},
	{
		view: "8", row: "login", label: "decide", fields: map[string]string{"verdict": "reject", "reason": "no tests"},
		arrange: func(s *stage) { s.review(nil) },
		check: func(s *stage) {
			d := s.decision()
			equal(s, "verdict", d.GetVerdict()+" by "+d.GetRounds()[0].GetDecidedBy(), "reject by lead")
		},
	},
	{
		view: "8", row: "login", label: "decide", fields: map[string]string{"verdict": "approve"},
		arrange: func(s *stage) {
			s.review(timestamppb.New(s.broker.Clock.Now().Add(time.Minute)))
			s.broker.Clock.Advance(2 * time.Minute)
			r, err := pb.NewEventServiceClient(s.operator()).SubscribeEvents(s.ctx, &pb.SubscribeEventsRequest{
				AfterRevision: new(int64), Filter: &pb.EventFilter{Types: []string{"decision.escalated"}},
			})
			for stream := must(s, r, err); ; {
				page, err := stream.Recv()
				if len(must(s, page, err).GetEvents()) > 0 {
					return
				}
			}
		},
		check: func(s *stage) {
			d := s.decision()
			equal(s, "verdict", d.GetVerdict()+" by "+d.GetRounds()[0].GetDecidedBy(), "approve by system")
		},
	},
	{
		view: "8", row: "login", label: "cancel", fields: map[string]string{"reason": "not needed"},
		arrange: func(s *stage) { s.review(nil) },
		check:   func(s *stage) { equal(s, "state", s.decision().GetState(), pb.DecisionState_DECISION_STATE_CANCELLED) },
	},
	{
		view: "8", row: "Login", label: "cancel", fields: map[string]string{"reason": "later"},
		arrange: (*stage).openHandoff,
		check:   func(s *stage) { equal(s, "state", s.handoff().GetState(), pb.HandoffState_HANDOFF_STATE_CANCELLED) },
	},
	{
		view: "8", row: "Login", label: "reject", fields: map[string]string{"reason": "too much"},
		arrange: (*stage).openHandoff,
		check:   func(s *stage) { equal(s, "notes", s.handoff().GetNotes(), "too much") },
	},
	{
		view: "8", row: "no access", label: "resolve", fields: map[string]string{"resolution": "granted"},
		arrange: (*stage).raise,
		check:   func(s *stage) { equal(s, "resolution", s.blocker().GetResolution(), "granted") },
	},
	{
		view: "8", row: "no access", label: "acknowledge", fields: map[string]string{"note": "on it"},
		arrange: (*stage).raise,
		check:   func(s *stage) { equal(s, "state", s.blocker().GetState(), pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED) },
	},
}

func TestActions_DoWhatTheySay(t *testing.T) {
	for _, c := range every {
		t.Run(c.view+" "+c.label, func(t *testing.T) {
			s := newStage(t)
			if c.arrange != nil {
				c.arrange(s)
			}
			fields := c.fields
			if c.label == "cancel a message" {
				fields = map[string]string{"message": s.id, "reason": "not needed"}
			}
			equal(s, "count", s.act(c.view, c.row, c.below, c.label, fields), c.counted)
			c.check(s)
		})
	}
}

func TestActions_ConcernAllMarkedRows(t *testing.T) {
	s := newStage(t)
	dead(s)
	s.press("6")
	s.refresh()
	s.press("x", "down", "x") // three and one; the newest is first
	s.act("6", "", false, "purge 2 marked dead letters", nil)
	page, err := pb.NewMessageServiceClient(s.operator()).ListDeadLetters(s.ctx, &pb.ListDeadLettersRequest{})
	left := must(s, page, err).GetItems()
	if len(left) != 1 || left[0].GetMessage().GetSubject() != "two" {
		t.Errorf("left: %v", left)
	}
}

func TestActions_ThoseOnAllThatMatchLeaveLaterDeadLetters(t *testing.T) {
	s := newStage(t)
	dead(s)
	s.press("6")
	s.refresh()
	s.press("a", "4", "ctrl+u", "enter", "enter", "enter", "enter", "enter")
	if asks, counted := s.state().Asks(); !asks || counted != "This would purge 3 dead letters." {
		t.Fatalf("asks %v, %q\n%s", asks, counted, s.state().Screen())
	}
	s.broker.Clock.Advance(time.Nanosecond)
	s.die("later", "no compiler")
	s.press("y")
	equal(s, "notice", s.state().Notice(), "purged 3 dead letters")
	page, err := pb.NewMessageServiceClient(s.operator()).ListDeadLetters(s.ctx, &pb.ListDeadLettersRequest{})
	if left := must(s, page, err).GetItems(); len(left) != 1 || left[0].GetMessage().GetSubject() != "later" {
		t.Errorf("left: %v", left)
	}
}

func TestActions_AFailureIsShownAndCanBeCorrected(t *testing.T) {
	s := newStage(t)
	question(s)
	s.press("3")
	s.refresh()
	s.press("a", "1")
	s.write("nowhere")
	s.press("enter", "enter", "y")
	if open, failure := s.state().Open(); !open || !strings.Contains(failure, "nowhere") {
		t.Errorf("open %v, failure %q", open, failure)
	}
	s.press("up", "ctrl+u")
	s.write("lead")
	s.press("enter", "enter", "y")
	s.has(s.inbox(s.lead), "message|Which branch?|")
}

func TestActions_WithoutTheConfirmationNothingHappens(t *testing.T) {
	for _, key := range []string{"n", "esc", "enter"} {
		s := newStage(t)
		dead(s)
		s.press("6")
		s.refresh()
		s.press("a", "2", key)
		page, err := pb.NewMessageServiceClient(s.operator()).ListDeadLetters(s.ctx, &pb.ListDeadLettersRequest{})
		if left := must(s, page, err).GetItems(); len(left) != 3 {
			t.Errorf("after %s: %v", key, left)
		}
	}
}

func TestObservers_SeeEverythingAndHaveNoActions(t *testing.T) {
	s := newStage(t)
	dead(s)
	contested(s)
	s.tasks()
	s.openVote()
	_, secret := s.broker.Issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER})
	watching := dial(t, client.WithAddress(s.broker.TCP()), client.WithCredential(secret))
	o := newScreen(t, 120, 40, false, true, watching)
	for _, view := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		o.press(view)
		o.refresh()
		if shown := o.state().Screen(); strings.Contains(shown, "loading") || strings.Contains(shown, "denied") {
			t.Errorf("view %s:\n%s", view, shown)
		}
		o.press("a")
		if open, _ := o.state().Open(); open {
			t.Errorf("view %s has actions:\n%s", view, o.state().Screen())
		}
		o.press("enter")
		if shown := o.state().Screen(); strings.Contains(shown, "loading") ||
			strings.Contains(shown, "PermissionDenied") {
			t.Errorf("details in view %s:\n%s", view, shown)
		}
		o.press("a")
		if open, _ := o.state().Open(); open {
			t.Errorf("details in view %s have actions", view)
		}
	}
}
