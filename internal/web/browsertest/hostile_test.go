package browsertest

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// Texts that would run a script or hide others if a page took them for markup.
const (
	image  = `<img src=x onerror="window.hacked=1">`
	script = `</script><script>window.hacked=1</script>`
	// turned has marks that show "txt.exe" as "exe.txt".
	turned = "\u202etxt.exe\u2067"
	evil   = image + script + turned
)

// slip is a path with markup that locks and artifacts accept.
const slip = `src/<img src=x onerror="window.hacked=1">`

// infect gives the team hostile text in every field that agents write.
func (m *team) infect() {
	m.t.Helper()
	call(m, "builder-2", pb.NewAgentServiceClient, pb.AgentServiceClient.RegisterAgent, &pb.RegisterAgentRequest{
		Role: "builder", Lease: durationpb.New(7 * 24 * 60 * 60 * 1e9), DisplayName: evil, Description: evil,
		Worktree: evil, Labels: map[string]string{evil: evil}, Capabilities: []string{"go"},
	})
	call(m, "builder-2", pb.NewAgentServiceClient, pb.AgentServiceClient.Heartbeat,
		&pb.HeartbeatRequest{Activity: new(evil), StatusReason: new(evil)})
	m.kill("builder-1", evil, evil)
	message := to("lead", evil)
	message.Body, message.Payload, message.Labels = evil, quote(m.t, evil), map[string]string{evil: evil}
	message.RequiresResponse, message.ThreadId, message.CorrelationId = true, evil, evil
	m.send("builder-1", message)

	m.lock("builder-1", slip)
	call(m, "builder-2", pb.NewLockServiceClient, pb.LockServiceClient.AcquireLocks,
		&pb.AcquireLocksRequest{Paths: []string{slip}, KeepTicket: true, Reason: evil, Holder: image})
	m.token("reviewer", "review", evil)
	m.token("builder-1", "review", evil)

	call(m, "lead", pb.NewTaskServiceClient, pb.TaskServiceClient.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{
		{Id: "task", Title: evil, Description: evil, Labels: map[string]string{evil: evil}},
	}})
	m.do("builder-1", "task", true)
	m.vote(evil)
	m.review(evil)
	call(m, "builder-1", pb.NewHandoffServiceClient, pb.HandoffServiceClient.CreateHandoff, &pb.CreateHandoffRequest{
		Title: evil, ToAgent: "builder-2", Checklist: []string{evil},
		Content: &pb.HandoffContent{Background: evil, NextSteps: []string{evil}},
	})
	call(m, "builder-2", pb.NewBlockerServiceClient, pb.BlockerServiceClient.RaiseBlocker, &pb.RaiseBlockerRequest{Reason: evil})
	call(m, "lead", pb.NewEventServiceClient, pb.EventServiceClient.PublishEvent,
		&pb.PublishEventRequest{Type: "test.hostile", Summary: evil, Details: quote(m.t, map[string]string{evil: evil})})
}

func TestHostile_TextOfAgentsIsText(t *testing.T) {
	m := newTeam(t)
	m.infect()
	p := open(m, operator, "attention")
	for _, view := range p.views() {
		p.show(view)
		switch view {
		case "attention", "queues": // their texts are made by the broker
		case "locks":
			p.await(`reach(a)`, slip)
		default:
			p.await(`reach(a)`, image)
		}
		p.harmless()
		p.openRows(8, func() { p.harmless() })
	}
}

// harmless checks that the page has no element that a text has made, and has run no script of a text.
func (p *tab) harmless() {
	p.t.Helper()
	if bad := value[[]string](p, `all('img, script:not([src="/ui/app.js"]), iframe, object, [onerror]').map((e) => e.outerHTML)`); len(bad) > 0 {
		p.t.Errorf("%s: text has become markup: %s", value[string](p, `location.hash`), bad)
	}
	if value[bool](p, `'hacked' in window`) {
		p.t.Errorf("%s: text has run as a script", value[string](p, `location.hash`))
	}
}

func TestHostile_LargestMessageIsShown(t *testing.T) {
	m := newTeam(t)
	message := to("lead", "The largest message")
	message.Body = strings.Repeat("b", 256<<10-3) + "end"
	message.Payload = `"` + strings.Repeat("p", 256<<10-5) + `end"`
	for range 480 { // together nearly 1 MiB
		message.Artifacts = append(message.Artifacts, strings.Repeat("a", 1024))
	}
	id := m.send("builder-1", message)[0]
	p := open(m, operator, "timeline?open=message:"+id)
	p.await(`has(one('.panel'), a)`, "The largest message")
	for range 2 {
		p.await(`press(one('.panel [data-show=all][aria-expanded=false]'))`)
	}
	p.await(`has(one('.panel'), 'bend') && has(one('.panel'), 'pend"')`)
	p.await(live, m.publish("still live"))
}
