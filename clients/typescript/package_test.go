// Package typescript_test builds the TypeScript client as npm packs it, installs it into an empty
// project, and runs its tests, its examples and its README there against a real daemon.
package typescript_test

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/internal/processtest"
)

const patience = 5 * time.Minute

// requireNode skips the test unless Node 20 or newer and the packages of package-lock.json are here.
func requireNode(t *testing.T) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "node", "-p", "process.versions.node").Output()
	major, _, _ := strings.Cut(string(out), ".")
	if n, _ := strconv.Atoi(major); err != nil || n < 20 {
		t.Skip("Node 20 or newer is missing")
	}
	if _, err := os.Stat("node_modules/typescript"); err != nil {
		t.Skip("node_modules is missing: `npm ci` in clients/typescript installs it")
	}
}

// readSources reads every file that the test depends on, so that Go does not reuse the result of a
// test of other files.
func readSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == "dist"):
			return fs.SkipDir
		case entry.Type().IsRegular():
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// project returns an empty project in which npm has installed the packed client, offline. npm takes
// the packages that the client depends on from node_modules in place of a registry.
func project(t *testing.T) string {
	t.Helper()
	requireNode(t)
	readSources(t)
	dir := t.TempDir()
	packed := run(t, ".", nil, "npm", "pack", "--silent", "--pack-destination", dir)
	archive := filepath.Join(dir, strings.TrimSpace(packed))
	app := filepath.Join(dir, "app")
	if err := os.Mkdir(app, 0o750); err != nil {
		t.Fatal(err)
	}
	dependencies := map[string]string{"@brokerd/client": "file:" + archive}
	for _, name := range []string{"@bufbuild/protobuf", "@connectrpc/connect", "@connectrpc/connect-node"} {
		dependencies[name] = "file:" + absolute(t, filepath.Join("node_modules", name))
	}
	manifest, err := json.Marshal(map[string]any{"name": "app", "private": true, "type": "module", "dependencies": dependencies})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(app, "package.json"), string(manifest))
	run(t, app, nil, "npm", "install", "--offline", "--silent", "--no-audit", "--no-fund", "--install-links")
	return app
}

func TestClient_PassesItsTests(t *testing.T) {
	app := project(t)
	program := processtest.Build(t)
	compile(t, app, "test", "examples")
	tests, err := filepath.Glob(filepath.Join(app, "build", "test", "*.test.js"))
	if err != nil || len(tests) == 0 {
		t.Fatalf("there are no tests: %v", err)
	}
	for _, file := range tests {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".test.js"), func(t *testing.T) {
			env := []string{"BROKERD_PROGRAM=" + program}
			t.Log(run(t, app, env, "node", "--test", "--test-timeout=120000", "--test-reporter=spec", file))
		})
	}
}

// compile copies folders into a project and compiles them, with every check of the compiler, against
// the types of the installed package.
func compile(t *testing.T, app string, folders ...string) {
	t.Helper()
	for _, folder := range folders {
		if err := os.CopyFS(filepath.Join(app, folder), os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(app, "tsconfig.json"), `{"compilerOptions": {
		"rootDir": ".", "outDir": "build", "target": "es2022", "lib": ["es2023", "esnext.disposable", "dom"],
		"module": "nodenext", "strict": true, "noUncheckedIndexedAccess": true, "exactOptionalPropertyTypes": true,
		"types": ["node"], "typeRoots": ["`+absolute(t, "node_modules/@types")+`"]}, "include": ["test", "examples"]}`)
	run(t, app, nil, absolute(t, "node_modules/.bin/tsc"))
}

// run runs a command and returns its standard output.
func run(t *testing.T, dir string, env []string, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(processtest.Environment(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the daemons of a test that hangs end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out, &complaints)
	}
	return string(out)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	full, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return full
}
