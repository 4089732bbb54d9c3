package artifacts_test

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// awaitVersions waits until the retention has left only these versions. It moves the clock, because a turn of the retention
// that was under way when the test moved it is followed by a rest of 3.6 hours, a twentieth of the time to keep.
func (w *world) awaitVersions(o *actor, want string) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; w.Clock.Advance(time.Minute) {
		got := strings.Join(names(o.list(&pb.ListArtifactsRequest{AllVersions: true})), " ")
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the versions are %s, want %s", got, want)
		}
	}
}

func TestRetention_ArchivesReplacedVersionsThatNoLiveDataNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apptest.WithFakeClock())
	o := w.operator()
	_, err := w.in("default", "a").registry.RegisterAgent(o.ctx, &pb.RegisterAgentRequest{Role: "builder"})
	must(t, err)
	for _, content := range []string{"1", "2", "3", "4", "5"} {
		o.upload("docs/plan.md", content)
	}
	sent, err := o.messages.SendMessages(o.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Subject: "Read this", Artifacts: []string{"docs/plan.md@1"},
	}}})
	must(t, err)
	_, err = o.state.PutState(o.ctx, &pb.PutStateRequest{Key: "plan", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "see docs/plan.md@2."}}})
	must(t, err)
	_, err = o.state.AppendState(o.ctx, &pb.AppendStateRequest{Key: "notes", Text: "the hash is " + sumOf("3")})
	must(t, err)
	w.Clock.Advance(73 * time.Hour)
	w.awaitVersions(o, "docs/plan.md@5 docs/plan.md@3 docs/plan.md@2 docs/plan.md@1")
	w.awaitFiles(0, 4)
	days, err := filepath.Glob(filepath.Join(w.Dir(), "archive", "default", "artifacts-*.jsonl.gz"))
	must(t, err)
	if len(days) != 1 {
		t.Fatalf("the archive has %v", days)
	}
	file, err := os.Open(days[0])
	must(t, err)
	defer func() { _ = file.Close() }() // it is only read
	unpacked, err := gzip.NewReader(file)
	must(t, err)
	text, err := io.ReadAll(unpacked)
	must(t, err)
	if !strings.Contains(string(text), `"sha256":"`+sumOf("4")+`"`) || strings.Count(string(text), "\n") != 1 {
		t.Errorf("the archive has %s", text)
	}
	// When the message is archived and the key deleted, nothing names these versions.
	_, err = o.messages.CancelMessage(o.ctx, &pb.CancelMessageRequest{Id: sent.Results[0].Id})
	must(t, err)
	_, err = o.state.DeleteState(o.ctx, &pb.DeleteStateRequest{Key: "plan"})
	must(t, err)
	w.Clock.Advance(73 * time.Hour)
	o.upload("other", "x")
	w.awaitVersions(o, "docs/plan.md@5 docs/plan.md@3 other@1")
}
