package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
)

// Only root can act as another user.
func TestUnreachable_AnotherUserAtTheSocketIsToldWhomItServes(tt *testing.T) {
	if os.Geteuid() != 0 {
		tt.Skip("only root can act as another user")
	}
	t := newShell(tt)
	startBroker(t)
	address := at(t, fields(t, "status"), "listen", 0).(string)
	socket := strings.TrimPrefix(strings.TrimPrefix(address, "unix:"), "//")
	run := func() (string, int) {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "--addr", address, "status")
		cmd.Env, cmd.Dir = []string{asProgram + "=1", "HOME=/"}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput() // the exit code is returned
		return string(out), cmd.ProcessState.ExitCode()
	}
	const want = " belongs to user 0, and its socket serves only that user; this is user 65534: "
	for dir := filepath.Dir(socket); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		apptest.NoError(t, os.Chmod(dir, 0o711))
	}
	for _, mode := range []os.FileMode{0o600, 0o777} { // the kernel refuses the connection; the broker refuses it
		apptest.NoError(t, os.Chmod(socket, mode))
		if out, code := run(); code != problem.ExitUnreachable || !strings.Contains(out, want) || strings.Contains(out, "frozen") {
			t.Errorf("mode %o: exit code %d, %s", mode, code, out)
		}
	}
}
