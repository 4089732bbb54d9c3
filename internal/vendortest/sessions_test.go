package vendortest

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fakemodel"
)

// Two sessions in one folder are two agents, for their hooks, their MCP servers and the commands of their
// models. One that is killed and resumed is the same agent, and its mail follows it.
func TestSessions_TwoInOneFolderAreTwoAgents(t *testing.T) {
	for i := range vendors {
		if vendors[i].name == "opencode" {
			continue // its screen asks for a prompt before it takes one
		}
		t.Run(vendors[i].name, func(t *testing.T) {
			r := newRun(t, &vendors[i])
			first := r.open()
			r.is(first, "PROMPT-first", "builder-1")
			second := r.open()
			r.is(second, "PROMPT-second", "builder-1-2")
			r.is(first, "PROMPT-once-more", "builder-1")
			r.is(second, "PROMPT-killed", "builder-1-2")

			resume := r.vendor.resume
			if by := map[string]string{"claude-code": "--resume", "codex": "resume"}[r.vendor.name]; by != "" {
				resume = []string{by, r.session("builder-1-2")} // the last one is not for certain the last that was used
			}
			second.end()
			r.endDaemon()
			id := r.sendTo("builder-1-2", "MAIL-for-the-second")
			second = r.open(resume...)
			r.is(second, "PROMPT-resumed", "builder-1-2")
			r.reached(r.sent[id])
			r.truthful()
		})
	}
}

// session returns the session of an agent.
func (r *run) session(agent string) string {
	r.t.Helper()
	out, err := r.broker.Agents().GetAgent(r.t.Context(), &pb.GetAgentRequest{Name: agent})
	if err != nil {
		r.t.Fatal(err)
	}
	return out.GetAgent().GetHarness().GetSession()
}

// is checks that a session is an agent: for a command of its model, for its MCP server, and for its hooks.
func (r *run) is(s *terminal, mark, name string) {
	r.t.Helper()
	// The shells of Codex have the PATH of a login.
	r.prompt(s, "RUN: "+filepath.Dir(r.daemon.Program())+"/brokerctl whoami ;; USE: team ;; ", mark)
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var results []string
	_, err := r.model.Await(ctx, func(q *fakemodel.Request) bool {
		at := slices.IndexFunc(q.Parts, func(p fakemodel.Part) bool { return p.Kind == fakemodel.Text && strings.Contains(p.Text, mark) })
		results = nil
		for _, p := range q.Parts[max(at, 0):] {
			if p.Kind == fakemodel.Result && at >= 0 {
				results = append(results, p.Text)
			}
		}
		return len(results) == 2
	})
	if err != nil {
		r.t.Fatalf("%s: %v, after %q", mark, err, results)
	}
	if !strings.Contains(results[0], name+"\n") && !strings.Contains(results[0], name+" ") {
		r.t.Errorf("%s: its command is not %s: %q", mark, name, results[0])
	}
	if strings.Contains(results[1], "You are the agent ") && !strings.Contains(results[1], "You are the agent "+name+" ") {
		r.t.Errorf("%s: its server is not %s: %q", mark, name, results[1])
	}
	out, err := r.broker.Agents().GetAgent(r.t.Context(), &pb.GetAgentRequest{Name: name})
	if err != nil {
		r.t.Fatal(err)
	}
	if h := out.GetAgent().GetHarness(); h.GetProgram() != r.vendor.name || h.GetState() == pb.HarnessState_HARNESS_STATE_ENDED {
		r.t.Errorf("%s: the hooks of %s report %v", mark, name, h)
	}
	r.await("the turn of "+name+" ends", 0, func(e *pb.Event) bool {
		return e.GetType() == "agent.presence" && strings.Contains(e.GetDetails(), `"agent":"`+name+`"`) && strings.Contains(e.GetDetails(), `"idle"`)
	})
}
