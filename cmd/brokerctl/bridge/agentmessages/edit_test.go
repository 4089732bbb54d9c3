package agentmessages_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/cmd/brokerctl/bridge/agentmessages"
	"brokerd/internal/apptest"
)

func TestEdit_ConcurrentChangeOfTheAgentIsNotLost(t *testing.T) {
	t.Parallel()
	for agentEdits := range 4 {
		t.Run(fmt.Sprint(agentEdits), func(t *testing.T) {
			t.Parallel()
			root := openRoot(t, t.TempDir())
			write(t, root, "m.json", `{"status": "delivered"}`)
			edits := 0
			err := agentmessages.Edit(root, "m.json", func(text []byte) ([]byte, error) {
				if edits < agentEdits { // the agent replaces the file after the bridge has read it
					edits++
					write(t, root, "m.json", fmt.Sprintf(`{"status": "delivered", "note": %d}`, edits))
				}
				changed, err := agentmessages.WithField(string(text), "status", `"read"`)
				return []byte(changed), err
			})
			apptest.NoError(t, err)
			want := map[string]any{"status": "read"}
			if agentEdits > 0 {
				want["note"] = float64(agentEdits)
			}
			if diff := cmp.Diff(want, object(t, root, "m.json")); diff != "" {
				t.Error(diff)
			}
			if left, _ := filepath.Glob(filepath.Join(root.Name(), ".bridge/edit/*")); len(left) > 0 {
				t.Errorf("the bridge has left %q", left)
			}
		})
	}
}

func TestEdit_ChangeThatAKillInterruptsKeepsTheTextOfTheAgent(t *testing.T) {
	t.Parallel()
	root := openRoot(t, t.TempDir())
	write(t, root, "inbox/m.json", `{"id": 1, "status": "read"}`) // the bridge's
	write(t, root, ".bridge/edit/inbox/m.json", `{"id": 1, "status": "acknowledged", "note": 7}`)
	write(t, root, ".bridge/edit/inbox/gone.json", `{"id": 2}`)
	apptest.NoError(t, agentmessages.ResumeEdits(root))
	want := map[string]any{"id": 1.0, "status": "acknowledged", "note": 7.0}
	if diff := cmp.Diff(want, object(t, root, "inbox/m.json")); diff != "" {
		t.Error(diff)
	}
	edits, _ := filepath.Glob(filepath.Join(root.Name(), ".bridge/edit/inbox/*"))
	files, _ := filepath.Glob(filepath.Join(root.Name(), "inbox/*"))
	if left := slices.Concat(edits, files); len(left) != 1 {
		t.Errorf("the folder has %q", left)
	}
}

func TestWithField_ChangesOneFieldAndNoOtherByte(t *testing.T) {
	for _, test := range []struct{ object, want string }{
		{`{"status":"a"}`, `{"status":"b"}`},
		{"{\n\t\"x\": {\"status\": 1},\n\t\"status\" :  \"a\" ,\"y\":[ 1 ]\n}\n", "{\n\t\"x\": {\"status\": 1},\n\t\"status\" :  \"b\" ,\"y\":[ 1 ]\n}\n"},
		{"{\n  \"x\": 1\n}\n", "{\n  \"x\": 1,\n  \"status\": \"b\"\n}\n"},
		{`{"x": 1, "y": 2}`, `{"x": 1, "y": 2, "status": "b"}`},
		{`{"status": "a", "status": "c"}`, `{"status": "a", "status": "b"}`},
	} {
		if got, err := agentmessages.WithField(test.object, "status", `"b"`); err != nil || got != test.want {
			t.Errorf("%q becomes %q (%v), not %q", test.object, got, err, test.want)
		}
	}
}
