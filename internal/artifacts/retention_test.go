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
func awaitVersions(w *apptest.Broker, want string) {
	w.Helper()
	for deadline := time.Now().Add(apptest.Patience); ; w.Clock.Advance(time.Minute) {
		got := strings.Join(names(list(w.Root(), &pb.ListArtifactsRequest{AllVersions: true})), " ")
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("the versions are %s, want %s", got, want)
		}
	}
}

func TestRetention_ArchivesReplacedVersionsThatNoLiveDataNames(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	o := w.Root()
	apptest.Must(t, w.Actor("default", "a").RegisterAgent, &pb.RegisterAgentRequest{Role: "builder"})
	for _, content := range []string{"1", "2", "3", "4", "5"} {
		upload(o, "docs/plan.md", content)
	}
	sent := apptest.Must(t, o.SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Subject: "Read this", Artifacts: []string{"docs/plan.md@1"},
	}}})
	apptest.Must(t, o.PutState, &pb.PutStateRequest{Key: "plan", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "see docs/plan.md@2."}}})
	apptest.Must(t, o.AppendState, &pb.AppendStateRequest{Key: "notes", Text: "the hash is " + sumOf("3")})
	w.Clock.Advance(73 * time.Hour)
	awaitVersions(w, "docs/plan.md@5 docs/plan.md@3 docs/plan.md@2 docs/plan.md@1")
	awaitFiles(w, 0, 4)
	days, err := filepath.Glob(filepath.Join(w.Dir(), "archive", "default", "artifacts-*.jsonl.gz"))
	apptest.NoError(t, err)
	if len(days) != 1 {
		t.Fatalf("the archive has %v", days)
	}
	file, err := os.Open(days[0])
	apptest.NoError(t, err)
	defer func() { _ = file.Close() }() // it is only read
	unpacked, err := gzip.NewReader(file)
	apptest.NoError(t, err)
	text, err := io.ReadAll(unpacked)
	apptest.NoError(t, err)
	if !strings.Contains(string(text), `"sha256":"`+sumOf("4")+`"`) || strings.Count(string(text), "\n") != 1 {
		t.Errorf("the archive has %s", text)
	}
	// When the message is archived and the key deleted, nothing names these versions.
	apptest.Must(t, o.CancelMessage, &pb.CancelMessageRequest{Id: sent.Results[0].Id})
	apptest.Must(t, o.DeleteState, &pb.DeleteStateRequest{Key: "plan"})
	w.Clock.Advance(73 * time.Hour)
	upload(o, "other", "x")
	awaitVersions(w, "docs/plan.md@5 docs/plan.md@3 other@1")
}
