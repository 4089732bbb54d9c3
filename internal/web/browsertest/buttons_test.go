package browsertest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
)

// A button is an action of a view. press uses it in the page and returns the state that the broker
// reports over gRPC afterwards.
type button struct {
	name  string
	press func(m *team, p *tab) string
	want  string
}

func TestButtons_DoWhatTheySay(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.Registered("tester", "tester")
	p := open(m, operator, "attention")
	for _, buttons := range [][]button{mailButtons, teamButtons, lockButtons, workButtons} {
		for _, b := range buttons {
			t.Run(b.name, func(t *testing.T) {
				m, p := m.with(t), p.with(t)
				if got := b.press(m, p); got != b.want {
					t.Errorf("the broker reports %q, want %q", got, b.want)
				}
				p.await(`!one('dialog[open]')`)
			})
		}
	}
}

// panel is the opened item.
const panel = `one('.panel')`

var mailButtons = []button{
	{"redrive a finding", func(m *team, p *tab) string {
		id := m.kill("builder-1", "Port the importer", "no such repository")
		p.show("attention")
		p.act(`row('1 dead letter')`, "RedriveDeadLetters")
		p.await(`has(one('dialog[open]'), '1 dead letter of builder-1.')`)
		p.confirm()
		p.await(`has(one('.toasts'), '1 dead letter of builder-1 redriven')`)
		p.await(`!row('1 dead letter')`)
		return m.state(id)
	}, "pending"},
	{"redrive one", func(m *team, p *tab) string {
		id := m.kill("builder-1", "Redrive this", "no such repository")
		other := m.kill("builder-1", "But not this", "no such repository")
		p.show(m.letter(id))
		p.await(`has(` + panel + `, 'fatal nack')`)
		p.act(panel, "redrive")
		p.await(`has(one('dialog[open]'), '1 dead letter')`)
		p.confirm()
		p.await(`has(` + panel + `, 'pending')`)
		return m.state(id) + " " + m.state(other)
	}, "pending dead"},
	{"redrive the selected", func(m *team, p *tab) string {
		first := m.kill("builder-2", "Select this", "no such repository")
		second := m.kill("builder-2", "Select that too", "no such repository")
		p.show("dead")
		for _, subject := range []string{"Select this", "Select that too"} {
			p.await(`press(one('input[type=checkbox]', all('[data-view] [data-row]').find((r) => has(r, a))))`, subject)
		}
		p.act(`document`, "redrive-selected")
		p.await(`has(one('dialog[open]'), '2 dead letters')`)
		p.confirm()
		return m.state(first) + " " + m.state(second)
	}, "pending pending"},
	{"purge one", func(m *team, p *tab) string {
		id := m.kill("reviewer", "Purge this", "no such repository")
		p.show(m.letter(id))
		p.act(panel, "purge")
		p.await(`has(one('dialog[open]'), '1 dead letter')`)
		p.confirm()
		return m.state(id)
	}, "cancelled"},
	{"redrive all that match", func(m *team, p *tab) string {
		matching := m.kill("reviewer", "It matches", "the disk is full")
		other := m.kill("reviewer", "It does not match", "no such repository")
		p.show("dead?error=disk+is+full")
		p.await(`one('[data-count="1"]')`)
		p.act(`document`, "redrive-all")
		p.await(`has(one('dialog[open]'), '1 dead letter')`)
		p.confirm()
		p.await(`one('[data-count="0"]')`)
		return m.state(matching) + " " + m.state(other)
	}, "pending dead"},
	{"purge all", func(m *team, p *tab) string {
		m.kill("reviewer", "It is one of all", "no such repository")
		count := len(m.letters())
		p.show("dead")
		p.await(`one('[data-count="' + a + '"]')`, count)
		p.act(`document`, "purge-all")
		p.await(`has(one('dialog[open]'), a)`, fmt.Sprintf("%d dead letter", count))
		m.kill("reviewer", "It dies after the count", "no such repository")
		p.confirm()
		p.await(`one('[data-count="1"]') && row(a)`, "It dies after the count")
		return fmt.Sprint(len(m.letters()))
	}, "1"},
	{"purge the selected", func(m *team, p *tab) string {
		first := m.kill("tester", "Purge the first", "no such repository")
		second := m.kill("tester", "Purge the second", "no such repository")
		p.show("dead")
		p.await(`row('Purge the first') && row('Purge the second') && press(one('[aria-label="Select all rows"]'))`)
		p.act(`document`, "purge-selected")
		p.await(`has(one('dialog[open]'), '3 dead letters')`)
		p.confirm()
		return m.state(first) + " " + m.state(second)
	}, "cancelled cancelled"},
	{"purge a finding", func(m *team, p *tab) string {
		id := m.kill("tester", "Purge this finding", "no such repository")
		p.show("attention")
		p.act(`one('[data-row="mailbox tester"]')`, "PurgeDeadLetters")
		p.confirm()
		p.await(`!one('[data-row="mailbox tester"]')`)
		return m.state(id)
	}, "cancelled"},
	{"redrive a mailbox", func(m *team, p *tab) string {
		first := m.kill("tester", "Redrive the first", "no such repository")
		second := m.kill("tester", "Redrive the second", "no such repository")
		p.show("queues/tester")
		p.act(panel, "redrive")
		p.await(`has(one('dialog[open]'), '2 dead letters')`)
		p.confirm()
		return m.state(first) + " " + m.state(second)
	}, "pending pending"},
	{"redrive a message", func(m *team, p *tab) string {
		id := m.kill("lead", "Redrive this message", "no such repository")
		p.show("queues?open=message:" + id)
		p.act(panel, "redrive")
		p.await(`has(` + panel + `, 'pending')`)
		return m.state(id)
	}, "pending"},
	{"resend a message", func(m *team, p *tab) string {
		id := m.send("lead", to("reviewer", "Resend this"))[0]
		p.show("queues?open=message:" + id)
		p.act(panel, "resend")
		return m.resent(id)
	}, "again"},
	{"resend a question", func(m *team, p *tab) string {
		id := m.ask("builder-2", "reviewer", "Which tool?")
		p.show("conversations/" + id)
		p.act(panel, "resend")
		return m.resent(id)
	}, "again"},
	{"cancel a question", func(m *team, p *tab) string {
		id := m.ask("builder-2", "reviewer", "Which editor?")
		p.show("conversations/" + id)
		p.act(panel, "cancel", "reason", "builder-2 has found one")
		p.confirm()
		p.await(`!one('.panel [data-action=cancel]')`)
		return m.state(id)
	}, "cancelled"},
	{"cancel a message", func(m *team, p *tab) string {
		id := m.send("lead", to("reviewer", "Withdraw this"))[0]
		p.show("queues?open=message:" + id)
		p.act(panel, "cancel")
		p.confirm()
		return m.state(id)
	}, "cancelled"},
	{"send as operator", func(m *team, p *tab) string {
		p.show("conversations")
		p.act(`document`, "send", "to", "role:builder", "subject", "Stop the deployment", "body", "The tests fail.")
		p.confirm()
		p.await(`row(a)`, "Stop the deployment")
		return m.newest("role:builder")
	}, "system: Stop the deployment"},
	{"answer a question", func(m *team, p *tab) string {
		id := m.ask("builder-2", "reviewer", "Which branch?")
		p.show("conversations/" + id)
		p.act(panel, "reply", "body", "main")
		p.confirm()
		p.await(`has(`+panel+`, a)`, "Re: Which branch?")
		return m.newest("builder-2")
	}, "system: Re: Which branch?"},
	{"answer a question to operators", func(m *team, p *tab) string {
		id := m.ask("builder-2", "operator", "May I deploy?")
		p.show("conversations")
		p.await(`has(one('nav a[href*=conversations] .mark'), '1') && has(row('May I deploy?'), 'for operator')`)
		p.show("conversations/" + id)
		p.act(panel, "reply", "body", "yes")
		p.confirm()
		p.await(`!one('nav a[href*=conversations] .mark')`)
		return m.newest("builder-2")
	}, "system: Re: May I deploy?"},
	{"finish a message to operators", func(m *team, p *tab) string {
		id := m.send("lead", to("operator", "All is done"))[0]
		p.show("conversations/" + id)
		p.act(panel, "done")
		p.await(`!one('.panel [data-action=done]')`)
		return m.state(id)
	}, "acked"},
	{"send into a conversation", func(m *team, p *tab) string {
		id := m.send("lead", to("reviewer", "The plan"))[0]
		p.show("conversations/" + id)
		p.act(panel, "send-into", "to", "reviewer", "body", "The plan has changed.")
		p.confirm()
		p.await(`has(`+panel+`, a)`, "The plan has changed.")
		return m.newest("reviewer")
	}, "system: "},
	{"resolve a conversation", func(m *team, p *tab) string {
		id := m.ask("builder-2", "reviewer", "Which port?")
		p.show("conversations/" + id)
		p.act(panel, "resolve", "outcome", "Any free one")
		p.confirm()
		p.await(`has(`+panel+`, a)`, "Any free one")
		out := call(m, "", pb.NewMessageServiceClient, pb.MessageServiceClient.ListThreads, &pb.ListThreadsRequest{Open: true})
		for _, thread := range out.GetThreads() {
			if thread.GetThreadId() == id {
				return "open"
			}
		}
		return "resolved"
	}, "resolved"},
}

// with returns the team for a part of the test.
func (m *team) with(t testing.TB) *team {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return &team{Broker: m.Broker, t: t, ctx: ctx}
}

// with returns the tab for a part of the test.
func (p *tab) with(t testing.TB) *tab {
	part := *p
	part.t = t
	return &part
}

// state returns the state of the one delivery of a message.
func (m *team) state(id string) string {
	m.t.Helper()
	out := call(m, "", pb.NewMessageServiceClient, pb.MessageServiceClient.GetMessage, &pb.GetMessageRequest{Id: id})
	return word(out.GetDeliveries()[0].GetState())
}

// resent waits until the broker redelivers a message after its newest one, and says whether the one
// delivery of the message has arrived again.
func (m *team) resent(id string) string {
	m.t.Helper()
	get := func() *pb.GetMessageResponse {
		return call(m, "", pb.NewMessageServiceClient, pb.MessageServiceClient.GetMessage, &pb.GetMessageRequest{Id: id})
	}
	revision := get().GetMessage().GetRevision()
	m.awaitEvent("message.resent", revision)
	if get().GetDeliveries()[0].GetArrival() > revision {
		return "again"
	}
	return "once"
}

// word returns the last word of an enum's value in lower case.
func word(value fmt.Stringer) string {
	name := value.String()
	return strings.ToLower(name[strings.LastIndexByte(name, '_')+1:])
}

// letter returns the view of a dead letter with one delivery.
func (m *team) letter(id string) string {
	m.t.Helper()
	out := call(m, "", pb.NewMessageServiceClient, pb.MessageServiceClient.GetMessage, &pb.GetMessageRequest{Id: id})
	return fmt.Sprintf("dead/%d%%40%s", out.GetMessage().GetRevision(), out.GetDeliveries()[0].GetMailbox())
}

// newest returns the sender and the subject of the newest message to a mailbox.
func (m *team) newest(mailbox string) string {
	m.t.Helper()
	out := call(m, "", pb.NewMessageServiceClient, pb.MessageServiceClient.ListMessages, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, NewestFirst: true, PageSize: 100,
	})
	for _, item := range out.GetItems() {
		got := call(m, "", pb.NewMessageServiceClient, pb.MessageServiceClient.GetMessage, &pb.GetMessageRequest{Id: item.GetMessage().GetId()})
		for _, d := range got.GetDeliveries() {
			if d.GetMailbox() == mailbox {
				return item.GetMessage().GetSender() + ": " + item.GetMessage().GetSubject()
			}
		}
	}
	return "nothing"
}
