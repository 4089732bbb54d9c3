package bridge_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/cmd/brokerctl/bridge"
	"brokerd/internal/apptest"
)

func TestEdit_ConcurrentChangeOfTheAgentIsNotLost(t *testing.T) {
	t.Parallel()
	for agentEdits := range 4 {
		t.Run(fmt.Sprint(agentEdits), func(t *testing.T) {
			t.Parallel()
			d := &team{t: t, dir: t.TempDir()}
			root := openRoot(t, d.dir)
			d.write("m.json", `{"status": "delivered"}`)
			edits := 0
			err := bridge.Edit(root, "m.json", func(text []byte) ([]byte, error) {
				if edits < agentEdits { // the agent replaces the file after the bridge has read it
					edits++
					d.write("m.json", fmt.Sprintf(`{"status": "delivered", "note": %d}`, edits))
				}
				changed, err := bridge.WithField(string(text), "status", `"read"`)
				return []byte(changed), err
			})
			apptest.NoError(t, err)
			want := map[string]any{"status": "read"}
			if agentEdits > 0 {
				want["note"] = float64(agentEdits)
			}
			if diff := cmp.Diff(want, d.object("m.json")); diff != "" {
				t.Error(diff)
			}
			if left, _ := filepath.Glob(filepath.Join(d.dir, ".bridge/edit/*")); len(left) > 0 {
				t.Errorf("the bridge has left %q", left)
			}
		})
	}
}

func TestEdit_ChangeThatAKillInterruptsKeepsTheTextOfTheAgent(t *testing.T) {
	t.Parallel()
	d := &team{t: t, dir: t.TempDir()}
	d.write("inbox/m.json", `{"id": 1, "status": "read"}`) // the bridge's
	d.write(".bridge/edit/inbox/m.json", `{"id": 1, "status": "acknowledged", "note": 7}`)
	d.write(".bridge/edit/inbox/gone.json", `{"id": 2}`)
	apptest.NoError(t, bridge.ResumeEdits(openRoot(t, d.dir)))
	want := map[string]any{"id": 1.0, "status": "acknowledged", "note": 7.0}
	if diff := cmp.Diff(want, d.object("inbox/m.json")); diff != "" {
		t.Error(diff)
	}
	if left := append(d.names(".bridge/edit/inbox"), d.names("inbox")...); len(left) != 1 {
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
		if got, err := bridge.WithField(test.object, "status", `"b"`); err != nil || got != test.want {
			t.Errorf("%q becomes %q (%v), not %q", test.object, got, err, test.want)
		}
	}
}

func openRoot(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}
