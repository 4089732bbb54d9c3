package broker_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestSend_NamesThatMeanEveryone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agents("builder", "b1", "b2")
	for _, m := range []*pb.Message{to("all"), to("ALL"), to("everyone"), toPattern("*")} {
		sent := lead.send(m)
		wantList(t, "recipients", recipients(t, sent), "b1", "b2")
		if got := lead.get(sent.Id).Message.Target; !proto.Equal(got, toEveryone().Target) {
			t.Errorf("%v became %v", m.Target, got)
		}
	}
	apptest.Invalid(t, lead.refused(to("all", one)), "messages[0].reach")
	alone := w.in("default", "")
	apptest.Must(t, alone.CreateSession, &pb.CreateSessionRequest{Name: "empty"})
	want(t, "recipients", w.in("empty", "").send(toPattern("*")).RecipientCount, 0)
}

func TestSend_AllOfARoleUnlessAnAgentHasThatName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agents("builder", "b1", "b2")
	w.agents("boss", "boss-1")
	for name, wanted := range map[string][]string{
		"all_builders": {"b1", "b2"}, "all_builder": {"b1", "b2"}, "all_boss": {"boss-1"}, "all_leads": nil,
	} {
		wantList(t, name, recipients(t, lead.send(to(name))), wanted...)
	}
	wantList(t, "from a builder", recipients(t, w.in("default", "b1").send(to("all_builders"))), "b2")
	for _, name := range []string{"all_", "all_s", "all_testers", "builders"} {
		apptest.Refused(t, lead.refused(to(name)), codes.NotFound, "AGENT_NOT_FOUND")
	}
	w.agent("tester", "builders")
	wantList(t, "the role of exactly that name first", recipients(t, lead.send(to("all_builders"))), "tester")
	w.agent("all_builders", "odd")
	wantList(t, "the agent first", recipients(t, lead.send(to("all_builders"))), "all_builders")
	err := drop(lead.Ask(lead.Ctx, &pb.AskRequest{Message: to("all_leads")}))
	apptest.Refused(t, err, codes.FailedPrecondition, "NO_RESPONDERS")
}

func TestSend_PatternThatMatchesNoAgentIsRefusedWithOneThatMatchesAPartOfAName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agents("engineer", "agent_engineer_1")
	for pattern, wanted := range map[string]string{
		"engineer_*": `patterns match whole names: use "*engineer_*", which matches agent_engineer_1`,
		"critic_*":   "patterns match whole names: no name contains it either",
		"*engineer":  `use "*engineer*", which matches agent_engineer_1`,
	} {
		err := lead.refused(toPattern(pattern))
		apptest.Refused(t, err, codes.NotFound, "AGENT_NOT_FOUND")
		if !strings.Contains(err.Error(), wanted) {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

func TestSend_WarnsOfARoleOrChannelThatNoAgentHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	texts := func(m *pb.Message, wanted string) {
		t.Helper()
		m.Subject = "text"
		for range 2 { // the second time from memory
			if got := strings.Join(lead.send(m).Warnings, "\n"); got != wanted {
				t.Errorf("%v: %q, want %q", m.Target, got, wanted)
			}
		}
	}
	texts(toRole("bulider"), "no agent has the role bulider (the nearest name is lead); the message waits until one does")
	b := w.agent("b", "builder")
	texts(toRole("bulider"), "no agent has the role bulider (did you mean builder?); the message waits until one does")
	texts(toRole("builder"), "")
	b.Register("tester")
	texts(toRole("builder"), "no agent has the role builder (the nearest names are tester, lead); the message waits until one does")
	b.deregister()
	texts(toRole("tester"), "no agent has the role tester (the nearest name is lead); the message waits until one does")
	texts(toEveryone(), "no other agent is meant by everyone; no agent gets the message")

	texts(toChannel("bulids"), "no agent subscribes to channel bulids; no agent gets the message")
	b = w.agent("b", "builder")
	b.subscribe("builds", "event/x.y")
	texts(toChannel("bulids"), "no agent subscribes to channel bulids (did you mean builds?); no agent gets the message")
	texts(toChannel("bulids", one), "no agent subscribes to channel bulids (did you mean builds?); the message waits until one does")
	texts(toChannel("builds"), "")
	texts(toChannel("builds", one), "")
	b.unsubscribe("builds")
	texts(toChannel("builds"), "no agent subscribes to channel builds; no agent gets the message")
	lead.subscribe("builds")
	texts(toChannel("builds"), "no other agent is meant by channel:builds; no agent gets the message")
	texts(to("b"), "")
}

func TestSend_WarnsOfAMessageWithoutText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	w.agent("b", "builder")
	silent := func(warnings []string) bool {
		return slices.ContainsFunc(warnings, func(s string) bool { return strings.HasPrefix(s, "the message has no text") })
	}
	body, payload := to("b"), to("b")
	body.Body, payload.Payload = "x", "0"
	for _, m := range []*pb.Message{to("b", subject("x")), body, payload, to("b", kind("nudge"))} {
		if got := lead.send(m).Warnings; len(got) > 0 {
			t.Errorf("%v: %q", m, got)
		}
	}
	if got := lead.send(to("b")).Warnings; len(got) != 1 || !silent(got) {
		t.Errorf("%q", got)
	}
	if got := lead.send(toRole("nobody")).Warnings; len(got) != 2 || !silent(got) {
		t.Errorf("%q", got)
	}
	s := lead.sender()
	results := s.exchange(&pb.SendRequest{Messages: []*pb.Message{to("b", subject("x")), to("b")}})
	if len(results[0].Warnings) > 0 || !silent(results[1].Warnings) {
		t.Errorf("on a stream: %v", results)
	}
	s.close()
	request := &pb.SendMessagesRequest{RequestId: newUUID(), Messages: []*pb.Message{to("b")}}
	for range 2 { // a repeated request gets the same answer
		answer, err := lead.SendMessages(lead.Ctx, proto.Clone(request).(*pb.SendMessagesRequest))
		if err != nil || !silent(answer.Results[0].Warnings) {
			t.Errorf("%v, %v", answer, err)
		}
	}
	c := w.agent("c", "")
	question := w.asks(lead, to("c"))
	c.reply(c.claim1().Message.Id, "answer")
	if got := question.answer(); !silent(got.Warnings) {
		t.Errorf("a question: %q", got.Warnings)
	}
}
