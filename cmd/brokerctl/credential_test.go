package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/app"
)

// startTCPBroker runs a daemon that also listens on TCP, and returns its address there.
func startTCPBroker(t *shell) string {
	t.Helper()
	startBrokerWith(t, func(c *app.Config) { c.Listen = []string{"127.0.0.1:0"} })
	return at(t, fields(t, "status"), "listen", 1).(string)
}

func TestCredential_IsIssuedUsedAndRevoked(tt *testing.T) {
	t := newShell(tt)
	address := startTCPBroker(t)
	file := filepath.Join(t.TempDir(), "b1.credential")
	out := must0(t, "credential", "issue", "agent", "b1", "--role", "builder", "--ttl", "1h", "--description", "CI", "--out", file)
	id := regexp.MustCompile(`^issued (c-\d+) for agent b1 in default, expires `).FindStringSubmatch(out)
	if id == nil || !strings.HasSuffix(out, "\nthe secret is in "+file+"\n") {
		t.Fatalf("%q", out)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() != 44 {
		t.Errorf("%v %v", info, err)
	}
	if got := ctl(t, "credential", "issue", "observer", "--out", file); got.code != problem.ExitUsage || !strings.Contains(got.err, "exists already") {
		t.Errorf("a file that exists: %+v", got)
	}

	t.Setenv("BROKERD_CREDENTIAL_FILE", file)
	over := func(args ...string) result {
		t.Helper()
		return ctl(t, append([]string{"--addr", address}, args...)...)
	}
	if got := over("--agent", "b1", "agent", "register"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := over("--agent", "b1", "agent", "register", "--role", "lead"); got.code != problem.ExitDenied {
		t.Errorf("another role: %+v", got)
	}
	if got := over("--agent", "b2", "inbox"); got.code != problem.ExitDenied || !strings.Contains(got.err, "the credential is for the agent b1") {
		t.Errorf("another agent: %+v", got)
	}
	if got := over("credential", "list"); got.code != problem.ExitDenied {
		t.Errorf("an agent lists credentials: %+v", got)
	}

	t.Setenv("BROKERD_CREDENTIAL_FILE", "")
	if got := fields(t, "credential", "list"); at(t, got, "id") != id[1] || at(t, got, "access") != "agent" || at(t, got, "last_used_from") != "127.0.0.1" ||
		at(t, got, "description") != "CI" {
		t.Errorf("%v", got)
	}
	if out := must0(t, "credential", "revoke", id[1], "--reason", "laptop lost"); !strings.HasPrefix(out, id[1]+" for agent b1 in default: revoked ") {
		t.Errorf("%q", out)
	}
	t.Setenv("BROKERD_CREDENTIAL_FILE", file)
	for _, args := range [][]string{{"inbox"}, {"receive", "--follow"}, {"claim", "--wait", "1h"}, {"event", "follow"}} {
		got := over(append([]string{"--agent", "b1"}, args...)...)
		if got.code != problem.ExitDenied || !strings.Contains(got.err, "was revoked at") || !strings.Contains(got.err, "laptop lost") {
			t.Errorf("%v with a revoked credential: %+v", args, got)
		}
	}
	t.Setenv("BROKERD_CREDENTIAL_FILE", "")
	if got := ctl(t, "credential", "list"); got.out != "" || !strings.Contains(got.err, "no credentials") {
		t.Errorf("%+v", got)
	}
	if got := fields(t, "credential", "list", "--all"); at(t, got, "state") != "revoked" {
		t.Errorf("%v", got)
	}
}

func TestCredentialIssue_PrintsTheSecretOnce(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	out := must0(t, "credential", "issue", "observer", "--any-session", "--expires-at", time.Now().AddDate(1, 0, 0).Format(time.RFC3339))
	if !regexp.MustCompile(`^issued c-\d+ for observer, expires [^\n]+\nsecret: [\w-]{43}\n$`).MatchString(out) {
		t.Errorf("%q", out)
	}
	const id = "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f"
	got := fields(t, "credential", "issue", "operator", "--request-id", id)
	if len(at(t, got, "secret").(string)) != 43 || at(t, got, "credential", "expires_at") != nil {
		t.Errorf("%v", got)
	}
	again := ctl(t, "credential", "issue", "operator", "--request-id", id)
	if again.code != problem.ExitConflict || !strings.Contains(again.err, "credential revoke "+at(t, got, "credential", "id").(string)) {
		t.Errorf("%+v", again)
	}
	for _, c := range []struct {
		args []string
		text string
	}{
		{[]string{"agent"}, "the agent's name is missing"},
		{[]string{"observer", "b1"}, "only an agent has a name"},
		{[]string{"operator", "--any-session"}, "--any-session is for observers"},
		{[]string{"root"}, "access"},
		{nil, "the access"},
	} {
		if got := ctl(t, append([]string{"credential", "issue"}, c.args...)...); got.code != problem.ExitUsage || !strings.Contains(got.err, c.text) {
			t.Errorf("%v: %+v", c.args, got)
		}
	}
	if got := ctl(t, "credential", "issue", "agent", "x", "--session", "nowhere", "--out", filepath.Join(t.TempDir(), "x")); got.code != problem.ExitNotFound {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "credential", "revoke", "c-1"); got.code != problem.ExitNotFound {
		t.Errorf("%+v", got)
	}
}

func TestCredential_WithoutARoleWarnsOfTheRolesThatDirect(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	got := ctl(t, "credential", "issue", "agent", "eve")
	if got.code != 0 || !strings.HasPrefix(got.err, "warning: this credential has no role, so eve may register as lead, ") ||
		!strings.HasSuffix(got.err, ": bind it with --role ROLE\n") {
		t.Errorf("%+v", got)
	}
	for _, args := range [][]string{{"agent", "bob", "--role", "builder"}, {"observer"}, {"operator"}} {
		if got := ctl(t, append([]string{"credential", "issue"}, args...)...); got.code != 0 || got.err != "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
	must0(t, "session", "configure", "--director", "boss")
	if got := ctl(t, "credential", "issue", "agent", "eve"); !strings.Contains(got.err, "may register as boss and") {
		t.Errorf("another director: %+v", got)
	}
}
