// Package python_test runs the tests of the Python package against the real daemon.
package python_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"brokerd/internal/processtest"
)

// patience is how long the tests of one module may take on a slow machine.
const patience = 5 * time.Minute

// skip matches the reason of a test that unittest has skipped.
var skip = regexp.MustCompile(`skipped .*`)

func TestPackage(t *testing.T) {
	t.Parallel()
	python := pythonWithGRPC(t)
	program := processtest.Build(t)
	readSources(t)
	modules, err := filepath.Glob("tests/test_*.py")
	if err != nil || len(modules) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, file := range modules {
		name := strings.TrimSuffix(filepath.Base(file), ".py")
		t.Run(strings.TrimPrefix(name, "test_"), func(t *testing.T) {
			t.Parallel() // most tests wait
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, python, "-m", "unittest", "-v", "tests."+name)
			cmd.WaitDelay = time.Second // a daemon that a killed test leaves behind ends with its standard input
			cmd.Env = append(processtest.Environment(t),
				"BROKERD_TEST_PROGRAM="+program, "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=.")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			for _, skipped := range skip.FindAllString(string(out), -1) {
				t.Log(skipped)
			}
		})
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

// readSources reads every file of the package: a changed file then invalidates the cached result of
// the test.
func readSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.Contains(path, "__pycache__") {
			return err
		}
		_, err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
