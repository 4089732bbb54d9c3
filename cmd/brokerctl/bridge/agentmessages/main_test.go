package agentmessages_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// write writes a file by a temporary file and a rename, as a careful script does.
func write(t *testing.T, root *os.Root, name, text string) {
	t.Helper()
	apptest.NoError(t, root.MkdirAll(filepath.Dir(name), 0o755))
	temp := filepath.Join(filepath.Dir(name), ".new")
	apptest.NoError(t, root.WriteFile(temp, []byte(text), 0o644))
	apptest.NoError(t, root.Rename(temp, name))
}

// object reads a file with a JSON object.
func object(t *testing.T, root *os.Root, name string) map[string]any {
	t.Helper()
	text, err := root.ReadFile(name)
	apptest.NoError(t, err)
	var o map[string]any
	apptest.NoError(t, json.Unmarshal(text, &o))
	return o
}

func openRoot(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}
