package python_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/internal/app"
)

// TestAgent_SendsClaimsAndAcksOverTCPWithTheCredential makes stubs from the protos as the README says, and runs
// agent.py with them against a daemon.
func TestAgent_SendsClaimsAndAcksOverTCPWithTheCredential(t *testing.T) {
	python := pythonWithGRPC(t)
	for _, tool := range []string{"protoc", "grpc_python_plugin"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing (Debian: protobuf-compiler, protobuf-compiler-grpc)", tool)
		}
	}
	stubs := t.TempDir()
	run(t, nil, "sh", "stubs.sh", stubs)

	data := t.TempDir()
	daemon, err := app.Start(context.Background(), app.Config{Dir: data, Listen: []string{"127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	address := ""
	for _, a := range daemon.Addresses() {
		if strings.HasPrefix(a, "127.0.0.1:") {
			address = a
		}
	}
	out := run(t, []string{"PYTHONPATH=" + stubs}, python, "agent.py", address, filepath.Join(data, "operator.credential"))
	for _, want := range []string{"sent ", "claimed ", "Add login t1", "state DELIVERY_STATE_ACKED"} {
		if !strings.Contains(out, want) {
			t.Errorf("agent.py did not print %q:\n%s", want, out)
		}
	}
}

// pythonWithGRPC finds a Python that has gRPC: Debian's, which is not always the first in the path.
func pythonWithGRPC(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"/usr/bin/python3", "python3"} {
		if exec.Command(python, "-c", "import grpc, google.protobuf").Run() == nil {
			return python
		}
	}
	t.Skip("there is no Python with gRPC (Debian: python3-grpcio)")
	return ""
}

func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}
