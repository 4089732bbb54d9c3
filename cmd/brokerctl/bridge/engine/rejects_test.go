package engine_test

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRejects_ReasonReplacesNoRejectedFile(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	apptest.NoError(t, err)
	defer root.Close() //nolint:errcheck // a folder
	c, err := client.Dial(t.Context(), client.WithAddress(apptest.Start(t).Socket()))
	apptest.NoError(t, err)
	defer c.Close()
	for _, names := range [][2]string{{"a.error", "a"}, {"b", "b.error"}} {
		for _, name := range names {
			apptest.NoError(t, root.WriteFile(name, []byte("the text of "+name), 0o644))
			apptest.NoError(t, engine.Reject(t.Context(), c, root, name, "bad"))
		}
	}
	kept := map[string]bool{}
	var names []string
	entries, err := os.ReadDir(filepath.Join(root.Name(), "rejected"))
	apptest.NoError(t, err)
	for _, e := range entries {
		text, err := root.ReadFile("rejected/" + e.Name())
		apptest.NoError(t, err)
		names, kept[string(text)] = append(names, e.Name()), true
	}
	for _, name := range []string{"a", "a.error", "b", "b.error"} {
		if !kept["the text of "+name] || !kept[name+": bad\n"] {
			t.Errorf("%s or its reason is lost; rejected/ has %q", name, names)
		}
	}
}
