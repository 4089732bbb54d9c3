package retention_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestExport_HasTheTypesAsTheirSendersWroteThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(short())
	w.send(&pb.Message{Type: "TaskAssignment", Subject: "one"})
	apptest.Must(t, w.as("").PublishEvent, &pb.PublishEventRequest{Type: "DeployStarted"})
	dir := w.export()
	for file, want := range map[string]string{
		"messages.jsonl": `"type":"task_assignment","type_as_sent":"TaskAssignment",`,
		"events.jsonl":   `"type":"deploy_started","type_as_sent":"DeployStarted",`,
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		apptest.NoError(t, err)
		if strings.Count(string(text), want) != 1 {
			t.Errorf("%s lacks %s:\n%s", file, want, text)
		}
	}
}
