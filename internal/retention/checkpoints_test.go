package retention_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A checkpoint is a line of checkpoints.jsonl.
type checkpoint struct {
	Agent     string          `json:"agent"`
	Revision  int64           `json:"revision"`
	Kind      string          `json:"kind"`
	Reference string          `json:"reference"`
	Data      json.RawMessage `json:"data"`
	SavedAt   time.Time       `json:"saved_at"`
}

// sameJSON compares JSON by what it means: an export has no blanks.
var sameJSON = cmp.Comparer(func(a, b json.RawMessage) bool {
	values := [2]any{}
	for i, text := range []json.RawMessage{a, b} {
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.UseNumber()
		if err := d.Decode(&values[i]); err != nil {
			return false
		}
	}
	return cmp.Equal(values[0], values[1])
})

func TestExport_HasTheCheckpointsAsTheyWereSaved(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(nil)
	var want []checkpoint
	save := func(agent string, kind pb.CheckpointKind, reference, data string) {
		t.Helper()
		w.Clock.Advance(1234567 * time.Nanosecond)
		saved := apptest.Must(t, w.as(agent).SaveCheckpoint,
			&pb.SaveCheckpointRequest{Kind: kind, Reference: reference, Data: data})
		if data == "" {
			data = "null"
		}
		name := strings.ToLower(strings.TrimPrefix(kind.String(), "CHECKPOINT_KIND_"))
		want = append(want, checkpoint{agent, saved.GetRevision(), name, reference, json.RawMessage(data), w.Clock.Now()})
	}
	for i := range 23 {
		save("lead", pb.CheckpointKind_CHECKPOINT_KIND_MESSAGE_PROCESSED, fmt.Sprint(i), "")
	}
	want = want[3:] // of one agent the last 20 are kept
	for data, kind := range map[string]pb.CheckpointKind{
		"":                                       pb.CheckpointKind_CHECKPOINT_KIND_MESSAGE_PROCESSED,
		`{"n": 12345678901234567}`:               pb.CheckpointKind_CHECKPOINT_KIND_STATE_COMMITTED,
		"\t[1.50, \"<é\\u0000\\n>\", {} ]\n":     pb.CheckpointKind_CHECKPOINT_KIND_TOKEN_RELEASED,
		`"` + strings.Repeat("&", 250<<10) + `"`: pb.CheckpointKind_CHECKPOINT_KIND_CUSTOM,
	} {
		save("builder", kind, "review/\"login\" <é>", data)
	}
	apptest.Must(t, w.as("builder").DeregisterAgent,
		&pb.DeregisterAgentRequest{})
	elsewhere := *w
	elsewhere.session = "default"
	elsewhere.register("lead")
	apptest.Must(t, w.Actor("default", "lead").SaveCheckpoint,
		&pb.SaveCheckpointRequest{Kind: pb.CheckpointKind_CHECKPOINT_KIND_CUSTOM})

	text, err := os.ReadFile(filepath.Join(w.export(), "checkpoints.jsonl"))
	apptest.NoError(t, err)
	var got []checkpoint
	for line := range strings.Lines(string(text)) {
		var c checkpoint
		apptest.NoError(t, json.Unmarshal([]byte(line), &c))
		if c.Data == nil {
			c.Data = json.RawMessage("null")
		}
		got = append(got, c)
	}
	if d := cmp.Diff(want, got, sameJSON); d != "" {
		t.Errorf("saved (-) and exported (+): %s", d)
	}
}
