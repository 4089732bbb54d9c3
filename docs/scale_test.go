package docs_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
)

// The commands are those of the page, in its order. Only the ports and the folder of PostgreSQL's programs differ, and
// root has these programs run as nobody.
func TestScale_ATakeoverIsAsThePageShows(t *testing.T) {
	t.Parallel()
	_, section, found := strings.Cut(read(t, "scale.md"), "### See a takeover")
	section, _, ended := strings.Cut(section, "\n## ")
	if !found || !ended {
		t.Fatal("scale.md does not show a takeover")
	}
	program, env := processtest.Build(t), processtest.Environment(t)
	folder, err := os.MkdirTemp("", "takeover") // short: the sockets lie below
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	tools := postgresTools(t, folder)
	reader := openTerminal(t, folder, env)
	reader.run("export PATH=" + filepath.Dir(program) + `:"$PATH"`)
	t.Cleanup(func() { // after a failure
		for _, cluster := range []string{"one", "two"} {
			data := filepath.Join(folder, cluster)
			_ = exec.Command(filepath.Join(tools, "pg_ctl"), "--pgdata", data, "--mode", "immediate", "stop").Run()
		}
	})
	first, second := freePort(t), freePort(t)
	demo, states := "", []string{}
	for _, block := range fence.FindAllStringSubmatch(section, -1) {
		if block[1] != "sh" {
			continue
		}
		for command := range strings.Lines(block[2]) {
			command = strings.TrimSpace(command)
			command = strings.ReplaceAll(strings.ReplaceAll(command, "54321", first), "54322", second)
			switch {
			case strings.HasPrefix(command, "mkdir "):
				continue
			case strings.HasPrefix(command, "export PATH="):
				command = "export PATH=" + tools + `:"$PATH"`
			}
			printed := reader.run(command)
			switch command {
			case "wait $demo":
				demo = reader.run("cat demo.txt")
			case "brokerctl status":
				states = append(states, printed)
			}
		}
	}
	if !strings.Contains(demo, "acked ×3  sign-in is complete, pull main") {
		t.Errorf("the demo did not end well:\n%s", demo)
	}
	if len(states) != 2 || !strings.Contains(states[0], "synchronous standby") ||
		!strings.Contains(states[1], "on the primary's disk") {
		t.Fatalf("the states after the loss of the leader, and of the primary:\n%s", strings.Join(states, "\n"))
	}
	for _, state := range states {
		if !strings.Contains(state, "folder     "+filepath.Join(folder, "b")) || !strings.Contains(state, "\nleader ") {
			t.Errorf("the other replica does not lead:\n%s", state)
		}
	}
}

// postgresTools returns a folder with PostgreSQL's programs, for a shell in another folder.
func postgresTools(t *testing.T, folder string) string {
	t.Helper()
	programs := postgrestest.Programs(t)
	if os.Geteuid() != 0 {
		return programs
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(nobody.Uid) // a number on Unix
	if err := os.Chown(folder, uid, -1); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	tools := t.TempDir()
	for _, name := range []string{"initdb", "pg_ctl", "pg_basebackup", "psql", "createdb"} {
		script := fmt.Sprintf("#!/bin/sh\nexec runuser -u nobody -- %s \"$@\"\n", filepath.Join(programs, name))
		if err := os.WriteFile(filepath.Join(tools, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return tools
}

// freePort returns a port that is free at present.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}
