package bridge_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// handoffs returns the handoffs to an agent, by title.
func (d *team) handoffs(agent string) map[string]*pb.Handoff {
	d.t.Helper()
	calls, found := pb.NewHandoffServiceClient(d.broker.Operator()), map[string]*pb.Handoff{}
	list, err := calls.ListHandoffs(d.t.Context(), &pb.ListHandoffsRequest{ToAgent: agent})
	apptest.NoError(d.t, err)
	for _, h := range list.GetHandoffs() {
		out, err := calls.GetHandoff(d.t.Context(), &pb.GetHandoffRequest{Id: h.GetId()})
		apptest.NoError(d.t, err)
		found[h.GetTitle()] = out.GetHandoff()
	}
	return found
}

// handOver is the file of a handoff of scout to lead.
func handOver(id, dir string) string {
	return fmt.Sprintf(`{"message_id": %q, "from_agent": "scout", "to_agent": "lead", "message_type": "handoff",
		"subject": %q, "payload": {"text": "so", "handoff_dir": "%s"}}`, id, id, dir)
}

func TestOffers_FolderThatCannotBeReadDoesNotHinderItsHandoff(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	d.broker.Registered("lead", "lead")
	d.write(agentRoot+"inbox/scout/.keep", "")
	d.write(agentRoot+"handoffs/file", "a file")
	d.write(agentRoot+"handoffs/inner/artifacts", "a file")
	d.write(agentRoot+"handoffs/bytes/HANDOFF.md", "\xff\xfe")
	d.write(agentRoot+"handoffs/bytes/artifacts/a\xff.md", "a name that is not UTF-8")
	d.write(agentRoot+"handoffs/bytes/artifacts/b.md", "an artifact")
	apptest.NoError(t, os.Symlink(t.TempDir(), filepath.Join(d.dir, agentRoot, "handoffs/out")))
	d.start()
	d.awaitAgent("scout")
	dirs := map[string]string{"file": "handoffs/file", "inner": "handoffs/inner", "bytes": "handoffs/bytes",
		"out": "handoffs/out", "nul": `handoffs/a\u0000b`, "long": "handoffs/" + strings.Repeat("x", 300)}
	want := map[string][]string{}
	for id, dir := range dirs {
		d.write(agentRoot+"inbox/lead/"+id+".json", handOver(id, dir))
		want[id] = nil
	}
	want["bytes"] = []string{"handoffs/bytes/artifacts/b.md"}
	for id := range dirs {
		d.archived(agentRoot + "inbox/lead/" + id + ".json")
	}
	got := map[string][]string{}
	for title, h := range d.handoffs("lead") {
		got[title] = h.GetContent().GetArtifacts()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the handoffs and their artifacts: %s", diff)
	}
}

func TestOffers_ArtifactThatCannotBeReadIsLeftOut(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("the superuser reads every file")
	}
	d := newTeam(t, "agent-messages")
	d.broker.Registered("lead", "lead")
	d.write(agentRoot+"inbox/scout/.keep", "")
	d.write(agentRoot+"handoffs/h/HANDOFF.md", "the story")
	d.write(agentRoot+"handoffs/h/artifacts/a.md", "secret")
	d.write(agentRoot+"handoffs/h/artifacts/b.md", "open")
	apptest.NoError(t, os.Chmod(filepath.Join(d.dir, agentRoot, "handoffs/h/artifacts/a.md"), 0))
	d.start()
	d.awaitAgent("scout")
	d.write(agentRoot+"inbox/lead/h.json", handOver("h", "handoffs/h"))
	d.archived(agentRoot + "inbox/lead/h.json")
	if h := d.handoffs("lead")["h"]; h.GetContent().GetBackground() != "the story" ||
		!cmp.Equal(h.GetContent().GetArtifacts(), []string{"handoffs/h/artifacts/b.md"}) {
		t.Errorf("the handoff is %v", h)
	}
}
