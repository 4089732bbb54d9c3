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

func TestPackage(t *testing.T) {
	t.Parallel()
	app := project(t)
	program := processtest.Build(t)
	readme, guide := blocks(t, "README.md", "ts"), blocks(t, "../../docs/agents-typescript.md", "ts")
	if len(guide) == 0 {
		t.Fatal("the guide has no programs")
	}
	if err := os.Mkdir(filepath.Join(app, "docs"), 0o750); err != nil {
		t.Fatal(err)
	}
	for i, text := range append(guide, readme...) {
		write(t, filepath.Join(app, "docs", "program-"+strconv.Itoa(i)+".ts"), text)
	}
	compile(t, app, "test", "examples")

	t.Run("has only what users need", func(t *testing.T) { hasOnlyWhatUsersNeed(t, app) })
	t.Run("compiles with the settings of the README", func(t *testing.T) {
		t.Parallel()
		settings := blocks(t, "README.md", "json")
		if len(settings) != 1 {
			t.Fatalf("README.md has %d blocks of JSON", len(settings))
		}
		write(t, filepath.Join(app, "docs", "tsconfig.json"), settings[0])
		run(t, app, nil, absolute(t, "node_modules/.bin/tsc"),
			"-p", "docs", "--noEmit", "--typeRoots", absolute(t, "node_modules/@types"))
	})
	t.Run("runs the first programs of README and guide", func(t *testing.T) {
		t.Parallel()
		firstProgramsRun(t, app, program)
	})
	tests, err := filepath.Glob(filepath.Join(app, "build", "test", "*.test.js"))
	if err != nil || len(tests) == 0 {
		t.Fatalf("there are no tests: %v", err)
	}
	for _, file := range tests {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".test.js"), func(t *testing.T) {
			t.Parallel() // most tests wait
			env := []string{"BROKERD_PROGRAM=" + program}
			t.Log(run(t, app, env, "node", "--test", "--test-timeout=240000", "--test-reporter=spec", file))
		})
	}
}

func hasOnlyWhatUsersNeed(t *testing.T, app string) {
	t.Helper()
	installed := filepath.Join(app, "node_modules", "@brokerd", "client")
	err := filepath.WalkDir(installed, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(installed, path)
		built := strings.HasPrefix(name, "dist/") && (strings.HasSuffix(name, ".js") || strings.HasSuffix(name, ".d.ts"))
		if err == nil && !built && name != "package.json" && name != "README.md" {
			t.Errorf("the package has %s", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	version, err := os.ReadFile("../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile("package.json")
	if err != nil {
		t.Fatal(err)
	}
	if want := `"version": "` + strings.TrimSpace(string(version)) + `"`; !strings.Contains(string(manifest), want) {
		t.Errorf("package.json does not have %s, as VERSION has it", want)
	}
	lock, err := os.ReadFile("package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(lock), `"resolved"`) {
		t.Error("package-lock.json names a registry: .npmrc keeps it out")
	}
}

// firstProgramsRun runs the README's first program as it is, in a project with nothing but the package,
// and the first program of the guide.
func firstProgramsRun(t *testing.T, app, program string) {
	t.Helper()
	daemon := processtest.New(t, program)
	if err := daemon.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	hello := blocks(t, "README.md", "js")
	if len(hello) != 1 {
		t.Fatalf("README.md has %d programs in JavaScript", len(hello))
	}
	write(t, filepath.Join(app, "hello.mjs"), hello[0])
	environment := []string{"BROKERD_DATA=" + daemon.Dir()}
	if got := run(t, app, environment, "node", "hello.mjs"); got != "builder-1 says Done: Add login\n" {
		t.Errorf("hello.mjs prints %q", got)
	}
	got := run(t, app, environment, "node", filepath.Join("build", "docs", "program-0.js"))
	if !strings.HasSuffix(got, "claimed Add login { task_id: 't1' }\nDone\n") {
		t.Errorf("the first program of the guide prints %q", got)
	}
}

// blocks returns the code blocks of a page in a language.
func blocks(t *testing.T, page, language string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, part := range strings.Split(string(text), "```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		found = append(found, block)
	}
	return found
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
		"types": ["node"], "typeRoots": ["`+absolute(t, "node_modules/@types")+`"]}, "include": ["test", "examples", "docs"]}`)
	run(t, app, nil, absolute(t, "node_modules/.bin/tsc"))
}

// run runs a command and returns its standard output.
func run(t *testing.T, dir string, env []string, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(processtest.Environment(t), env...)
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
