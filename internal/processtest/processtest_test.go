package processtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/internal/processtest"
)

// The child is a shell that keeps a history and writes its configuration.
func TestEnvironment_LeavesTheFilesOfTheUserAlone(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("HISTFILE", filepath.Join(home, "history"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(home, "configuration"))
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	t.Setenv("BROKERD_ADDR", "127.0.0.1:1")
	shell := exec.CommandContext(t.Context(), "bash")
	shell.Env = processtest.Environment(t)
	shell.Stdin = strings.NewReader(`set -o history
echo text
history -a
for folder in "${XDG_CONFIG_HOME:-$HOME/.config}" "${XDG_STATE_HOME:-$HOME/.local/state}"; do
  mkdir -p "$folder" && echo text >"$folder/file" || exit 7
done
exit ${BROKERD_ADDR:+8}
`)
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	written, err := os.ReadDir(home)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range written {
		t.Errorf("the child has written %s", entry.Name())
	}
}
