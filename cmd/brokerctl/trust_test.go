package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/apptest"
)

// aSecret has the form of a credential.
var aSecret = strings.Repeat("k", 42) + "A"

// A foreign is a server of another person, to which nothing may be sent.
type foreign struct {
	*net.TCPListener
	address string
}

func newForeign(t *shell) *foreign {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return &foreign{l.(*net.TCPListener), l.Addr().String()}
}

// gotNothing wants the connection of the test to be the first one.
func (f *foreign) gotNothing(t *shell, after string) {
	t.Helper()
	own, err := net.Dial("tcp", f.address)
	apptest.NoError(t, err)
	defer func() { _ = own.Close() }()
	for {
		got, err := f.Accept()
		apptest.NoError(t, err)
		if got.RemoteAddr().String() == own.LocalAddr().String() {
			_ = got.Close()
			return
		}
		go func() { _, _ = io.Copy(io.Discard, got) }() // ends with the connection
		t.Errorf("%s has connected", after)
		_ = got.Close()
	}
}

// secretFile writes a file with a secret and returns its path.
func secretFile(t *shell, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	apptest.NoError(t, os.WriteFile(path, []byte(secret+"\n"), 0o600))
	return path
}

// commandKinds are command lines of each kind that connects.
var commandKinds = [][]string{
	{"inbox"}, {"send", "builder-1", "x"}, {"claim", "--wait", "1s"}, {"whoami"}, {"status"}, {"event", "follow"},
	{"call", "AgentService/ListAgents", "{}"}, {"ping"}, {"bridge", "maildir", "."}, {"bench", "--seconds", "0.1"},
	{"next"}, {"explain"}, {"credential", "list"}, {"dashboard"}, {"mcp"},
	{"agent", "run", "--", "true"}, {"lock", "run", "a.go", "--", "true"}, {"token", "run", "review", "x", "--", "true"},
	{"work", "--once", "--", "true"}, {"task", "work", "--once", "--", "true"},
	{"init", "--agent", "builder-2"}, {"setup", "claude-code"},
}

func TestTrust_AFolderOfAnotherPersonGetsNoCall(tt *testing.T) {
	t := newShell(tt)
	startBroker(t) // to which no command may fall back
	server := newForeign(t)
	for name, file := range map[string]string{
		"an address and a credential":      "addr: " + server.address + "\ncredential_file: " + secretFile(t, aSecret) + "\n",
		"an address":                       "addr: " + server.address + "\n",
		"a credential for the user's own":  "credential_file: " + secretFile(t, aSecret) + "\n",
		"an authority for the user's own":  "tls_ca: ca.pem\n",
		"a certificate for the user's own": "tls_cert: c.pem\ntls_key: c.key\n",
	} {
		t.Run(name, func(t *shell) {
			t.dir = t.TempDir()
			if name == "an address" {
				t.Setenv("BROKERD_CREDENTIAL_FILE", secretFile(t, aSecret))
			}
			configure(t, file+"agents: {builder-1: {role: builder}}\n")
			before := tree(t)
			for _, args := range commandKinds {
				got := ctl(t, args...)
				if got.code != problem.ExitUsage || !strings.Contains(got.err, "`brokerctl trust`") ||
					!strings.Contains(got.err, t.path(setting.ConfigFile)) {
					t.Errorf("%q: %+v", args, got)
				}
			}
			for vendor, in := range vendorInputs {
				for _, input := range []string{in.write, in.stop, in.end} {
					got := hookedBy(t, vendor, input, "s1")
					if got.code != 0 || !strings.Contains(got.err, "`brokerctl trust`") {
						t.Errorf("the hook of %s: %+v", vendor, got)
					}
				}
			}
			for _, input := range []string{editInput, stopInput} {
				got := hooked(t, input)
				if got.code != 0 || !strings.Contains(got.err, "`brokerctl trust`") {
					t.Errorf("the hook of Claude Code: %+v", got)
				}
			}
			server.gotNothing(t, name)
			if after := tree(t); len(after) != len(before) || after[setting.ConfigFile] != before[setting.ConfigFile] {
				t.Errorf("the folder has %v", after)
			}
			for _, args := range [][]string{{"--no-config", "status"}, {"--no-config", "agent", "list"}} {
				if got := ctl(t, args...); got.code != 0 && name != "an address" {
					t.Errorf("%q: %+v", args, got)
				}
			}
			if got := ctl(t, "version"); got.code != 0 {
				t.Errorf("%+v", got)
			}
		})
	}
	must0(t, "agent", "list") // the user's own broker answers in other folders
}

func TestTrust_CoversFiveValuesAtOnePath(tt *testing.T) {
	t := newShell(tt)
	address := startTCPBroker(t)
	secret := filepath.Join(t.TempDir(), "b1.credential")
	must0(t, "credential", "issue", "agent", "b1", "--role", "builder", "--out", secret)
	file := "addr: " + address + "\ncredential_file: " + secret + "\nagents: {b1: {role: builder}}\n"
	configure(t, file)
	if got := ctl(t, "trust"); got.code != problem.ExitUsage || strings.Contains(got.err, "--yes") ||
		!strings.Contains(got.err, "a person runs `brokerctl trust` there") ||
		!strings.Contains(got.err, "addr             "+address+"\n") ||
		!strings.Contains(got.err, "credential_file  "+secret+"  (outside of the folder)\n") {
		t.Errorf("without a terminal: %+v", got)
	}
	if got := ctl(t, "agent", "register"); got.code != problem.ExitUsage {
		t.Errorf("%+v", got)
	}
	must0(t, "trust", "--yes")
	must0(t, "agent", "register")
	store := filepath.Join(t.Getenv("XDG_CONFIG_HOME"), "brokerd", "trusted")
	entries, err := os.ReadDir(store)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	if info, err := entries[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}

	configure(t, file+"session: default\noutput: json\n") // the other keys need no trust
	must0(t, "inbox")
	for _, change := range []string{
		strings.Replace(file, "addr: ", "addr: tls://", 1), strings.Replace(file, secret, secretFile(t, aSecret), 1),
		file + "tls_ca: ca.pem\n", file + "tls_cert: c.pem\ntls_key: c.key\n", strings.Replace(file, "addr", "#addr", 1),
	} {
		configure(t, change)
		if got := ctl(t, "inbox"); got.code != problem.ExitUsage || !strings.Contains(got.err, "`brokerctl trust`") {
			t.Errorf("%s: %+v", change, got)
		}
	}
	configure(t, file)
	must0(t, "inbox")

	moved := filepath.Join(t.TempDir(), "moved")
	apptest.NoError(t, os.Rename(t.dir, moved))
	before := t.dir
	t.Chdir(moved)
	if got := ctl(t, "inbox"); got.code != problem.ExitUsage {
		t.Errorf("at another path: %+v", got)
	}
	link := filepath.Join(t.TempDir(), "link")
	apptest.NoError(t, os.Symlink(moved, link))
	must0(t, "trust", link, "--yes")
	must0(t, "inbox")
	if got := must0(t, "trust", "--list"); !strings.Contains(got, moved+"/.brokerd.yaml    trusted") &&
		!strings.Contains(got, moved+"/.brokerd.yaml  trusted") || !strings.Contains(got, before) ||
		!strings.Contains(got, "missing") {
		t.Errorf("%s", got)
	}
	must0(t, "trust", "--revoke")
	if got := ctl(t, "inbox"); got.code != problem.ExitUsage {
		t.Errorf("after --revoke: %+v", got)
	}
	if got := ctl(t, "trust", "--revoke"); got.code != problem.ExitNotFound {
		t.Errorf("a second --revoke: %+v", got)
	}
}

func TestTrust_ALinkOutOfTheFolderIsShownAndNotFollowed(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	outside, own := secretFile(t, aSecret), secretFile(t, aSecret)
	files := func(change func() error) {
		t.Helper()
		apptest.NoError(t, os.RemoveAll(t.path("keys")))
		apptest.NoError(t, change())
	}
	regular := func() error {
		return errors.Join(os.Mkdir(t.path("keys"), 0o700), os.Rename(own, t.path("keys/secret")))
	}
	for _, file := range []string{"credential_file: keys/secret\n", "tls_ca: keys/secret\n"} {
		key, _, _ := strings.Cut(file, ":")
		configure(t, "addr: tls://127.0.0.1:1\n"+file)
		own = secretFile(t, aSecret)
		files(regular)
		must0(t, "trust", "--yes")
		const refusal = "a symbolic link leads %s out of the folder"
		if got := ctl(t, "inbox"); strings.Contains(got.err, "symbolic link") {
			t.Errorf("%s, a regular file: %+v", key, got)
		}
		for what, link := range map[string]func() error{
			"the file": func() error {
				return errors.Join(os.Mkdir(t.path("keys"), 0o700), os.Symlink(outside, t.path("keys/secret")))
			},
			"its folder": func() error { return os.Symlink(filepath.Dir(outside), t.path("keys")) },
		} {
			files(link)
			for _, args := range [][]string{{"inbox"}, {"mcp"}, {"init", "--agent", "a"}} {
				if got := ctl(t, args...); got.code != problem.ExitUsage || !strings.Contains(got.err, fmt.Sprintf(refusal, key)) {
					t.Errorf("%s, a link for %s, %q: %+v", key, what, args, got)
				}
			}
			must0(t, "trust", "--revoke")
			note := t.path("keys/secret") + "  (a symbolic link to " + outside + ", outside of the folder)\n"
			if got := ctl(t, "trust", "--yes"); got.code != 0 || !strings.Contains(got.err, note) {
				t.Errorf("%s, a link for %s: %+v", key, what, got)
			}
		}
	}
}

func TestTrust_AValueIsOneLine(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	configure(t, `addr: "192.0.2.1:1`+strings.Repeat(`\n`, 99)+`  addr             127.0.0.1:1"`+"\n")
	got := ctl(t, "trust", "--yes")
	if got.code != 0 || strings.Count(got.err, "\n") != 2 || !strings.Contains(got.err, "\n  addr             192.0.2.1:1; ") {
		t.Errorf("%+v", got)
	}
}

func TestTrust_ACommandInsideConnectsAsItsParent(tt *testing.T) {
	t := newShell(tt)
	address := startTCPBroker(t)
	secret := filepath.Join(t.TempDir(), "b1.credential")
	must0(t, "credential", "issue", "agent", "b1", "--role", "builder", "--out", secret)
	configure(t, "addr: "+address+"\ncredential_file: "+secret+"\n")
	must0(t, "trust", "--yes")
	out := must0(t, "agent", "run", "--agent", "b1", "--role", "builder", "--", "sh", "-c",
		asProgram+`=1 `+self(t)+` whoami -o json`)
	if got := decode(t, out); at(t, got, "agent") != "b1" || at(t, got, "addr_from") != "BROKERD_ADDR" {
		t.Errorf("%v", got)
	}
}

func TestTrust_ACredentialOfOneSourceIsNotForTheAddressOfTheOther(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	server := newForeign(t)
	own := secretFile(t, aSecret)
	for _, c := range []struct {
		file string
		env  []string // name and value in turn
		want string
	}{
		{"", []string{"BROKERD_CREDENTIAL_FILE", own}, "BROKERD_CREDENTIAL_FILE must not go to " + server.address},
		{"tls_ca: ca.pem\n", []string{"BROKERD_TLS_CERT", own, "BROKERD_TLS_KEY", own},
			"BROKERD_TLS_CERT and BROKERD_TLS_KEY must not go to " + server.address},
	} {
		t.Run(c.want, func(t *shell) {
			configure(t, "addr: "+server.address+"\n"+c.file)
			must0(t, "trust", "--yes")
			for i := 0; i < len(c.env); i += 2 {
				t.Setenv(c.env[i], c.env[i+1])
			}
			for _, args := range [][]string{{"inbox"}, {"mcp"}, {"agent", "run", "--agent", "a", "--", "true"}} {
				if got := ctl(t, args...); got.code != problem.ExitUsage || !strings.Contains(got.err, c.want) {
					t.Errorf("%q: %+v", args, got)
				}
			}
			if got := hooked(t, stopInput); got.code != 0 || !strings.Contains(got.err, c.want) {
				t.Errorf("%+v", got)
			}
			server.gotNothing(t, "a command")
		})
	}
}

func TestTrust_AnAddressOfTheCallerGetsNoCredentialOfTheFile(tt *testing.T) {
	t := newShell(tt)
	address := startTCPBroker(t)
	secret := filepath.Join(t.TempDir(), "b1.credential")
	must0(t, "credential", "issue", "agent", "b1", "--out", secret)
	configure(t, "addr: 127.0.0.1:1\ncredential_file: "+secret+"\n")
	for range 2 { // also if the user trusts the file
		if got := ctl(t, "--addr", address, "--agent", "b1", "inbox"); got.code != problem.ExitDenied ||
			!strings.Contains(got.err, "BROKERD_CREDENTIAL_FILE") {
			t.Errorf("%+v", got)
		}
		must0(t, "trust", "--yes")
	}
	t.Setenv("BROKERD_CREDENTIAL_FILE", secret)
	must0(t, "--addr", address, "--agent", "b1", "agent", "register")
}

func TestTrust_ASecretOfAnotherProgramIsNotSent(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	server := newForeign(t)
	const foreignSecret = "ghp_ONE_LINE_SECRET_OF_ANOTHER_PROGRAM"
	secret := secretFile(t, foreignSecret)
	configure(t, "addr: "+server.address+"\ncredential_file: "+secret+"\n")
	must0(t, "trust", "--yes")
	for range 2 {
		got := ctl(t, "inbox")
		if got.code != problem.ExitUsage || !strings.Contains(got.err, secret) || strings.Contains(got.err, foreignSecret) {
			t.Errorf("%+v", got)
		}
		server.gotNothing(t, "a command")
		t.dir = t.TempDir() // without a file
		t.Setenv("BROKERD_ADDR", server.address)
		t.Setenv("BROKERD_CREDENTIAL_FILE", secret)
	}
}

func TestTrust_WhatInitAndSetupWriteIsTrusted(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	address := at(t, fields(t, "status"), "listen", 0).(string)
	t.Setenv("BROKERD_DATA", t.TempDir()) // only the file leads to the broker
	must0(t, "--addr", address, "init", "--agent", "builder-1")
	must0(t, "inbox")
	apptest.NoError(t, os.Mkdir(t.path("web"), 0o755))
	t.Chdir("web")
	must0(t, "init", "--agent", "builder-2")
	if got := fields(t, "whoami"); at(t, got, "agent") != "builder-2" || at(t, got, "addr_from") != t.path(setting.ConfigFile) {
		t.Errorf("a folder below: %v", got)
	}
	t.dir = t.TempDir()
	must0(t, "--addr", address, "setup", "claude-code", "--agent", "builder-3")
	must0(t, "agent", "register", "builder-3")

	t.dir = t.TempDir() // init and setup do not vouch for the values of another person
	server := newForeign(t)
	configure(t, "credential_file: "+secretFile(t, aSecret)+"\n")
	for _, args := range [][]string{{"init", "--agent", "a"}, {"setup", "claude-code", "--agent", "a"}} {
		if got := ctl(t, append([]string{"--addr", server.address}, args...)...); got.code != problem.ExitUsage ||
			!strings.Contains(got.err, "`brokerctl trust`") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if files := tree(t); len(files) != 2 { // the folder and its file
		t.Errorf("%v", files)
	}
	server.gotNothing(t, "init or setup")
}

func TestTrust_AnEntryThatAnotherUserCouldWriteDoesNotCount(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	configure(t, "addr: 127.0.0.1:1\n")
	must0(t, "trust", "--yes")
	entries, err := filepath.Glob(filepath.Join(t.Getenv("XDG_CONFIG_HOME"), "brokerd", "trusted", "*"))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	apptest.NoError(t, os.Chmod(entries[0], 0o666))
	if got := ctl(t, "inbox"); got.code != problem.ExitUsage || !strings.Contains(got.err, entries[0]) {
		t.Errorf("%+v", got)
	}
}

// The tests of the Python and TypeScript clients have the same sum.
func TestTrust_TheSumIsTheSameInEveryClient(t *testing.T) {
	file, err := setting.ParseConfig("/x/.brokerd.yaml",
		[]byte("addr: tls://broker.example:7421\ncredential_file: geheim/schlüssel\nsession: web\n"))
	apptest.NoError(t, err)
	const want = "9f3f4d2232e00b526b3632cfa9da1779ff72a995c77aa23b4a76aa7402f0621a"
	if got := file.ConnectionSum(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
