package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/local"
	"brokerd/internal/apptest"
)

// exchange uses a link as the page does, and returns the answer.
func exchange(t testing.TB, link string) (status int, answer map[string]any) {
	t.Helper()
	base, secret, _ := strings.Cut(link, "/login#")
	return post(t, base+"/v1/login", "", `{"secret":"`+secret+`"}`)
}

// post makes a request as the page does, with a token unless it is empty.
func post(t testing.TB, url, token, body string) (status int, answer map[string]any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
	apptest.NoError(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	r.Close = true
	out, err := http.DefaultClient.Do(r)
	apptest.NoError(t, err)
	defer func() { _ = out.Body.Close() }()
	apptest.NoError(t, json.NewDecoder(out.Body).Decode(&answer))
	return out.StatusCode, answer
}

func TestDashboard_PrintsALinkThatLogsInOnce(tt *testing.T) {
	t := newShell(tt)
	address := startTCPBroker(t)
	must0(t, "session", "create", "team")
	for _, tt := range []struct {
		args                   []string
		level, session, holder string
	}{
		{nil, "operator", "default", "operator"},
		{[]string{"--session", "team", "--observer"}, "observer", "team", "observer in team"},
	} {
		out := must0(t, append([]string{"dashboard"}, tt.args...)...)
		want := regexp.MustCompile(`^(http://` + regexp.QuoteMeta(address) + `/login#[\w-]{43})\nOpen it once, ` +
			`within 2m\. It logs in as ` + tt.level + `, session ` + tt.session + `, for 12h\.\n$`)
		found := want.FindStringSubmatch(out)
		if found == nil {
			t.Fatalf("%q", out)
		}
		status, got := exchange(t, found[1])
		if status != http.StatusOK || got["level"] != tt.level || got["session"] != tt.session {
			t.Errorf("%d %v", status, got)
		}
		if status, got := exchange(t, found[1]); status != http.StatusUnauthorized {
			t.Errorf("again: %d %v", status, got)
		}
		row := regexp.MustCompile(`(?m)^c-\d+ +` + tt.holder + ` .*dashboard$`)
		if list := must0(t, "credential", "list"); !row.MatchString(list) {
			t.Errorf("%s", list)
		}
	}
	link := fields(t, "dashboard", "--observer")
	if link["access"] != "observer" || link["session"] != "default" || link["expires_at"] == "" ||
		!strings.HasPrefix(link["url"].(string), "http://"+address+"/login#") {
		t.Errorf("%v", link)
	}
	if got := ctl(t, "--agent", "a", "dashboard"); got.code != problem.ExitDenied {
		t.Errorf("as an agent: %+v", got)
	}
}

func TestDashboard_ABrokerWithoutATCPAddressOpensOneOnLoopback(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	out := must0(t, "dashboard")
	link, _, _ := strings.Cut(out, "\n")
	if status, answer := exchange(t, link); status != http.StatusOK {
		t.Errorf("%s: %d %v", out, status, answer)
	}
	base, _, _ := strings.Cut(link, "/login#")
	if status, answer := post(t, base+"/v1/messages", "", `{}`); status != http.StatusUnauthorized {
		t.Errorf("a call there without a credential: %d %v", status, answer)
	}
	if again := must0(t, "dashboard"); !strings.HasPrefix(again, base+"/login#") {
		t.Errorf("the second link is %q, want it at %s", again, base)
	}
	if listen := at(t, fields(t, "status"), "listen").([]any); len(listen) != 2 || "http://"+listen[1].(string) != base {
		t.Errorf("the broker listens on %v", listen)
	}
}

func TestPageAddress_NamesWhatABrowserCanOpen(t *testing.T) {
	for _, tt := range []struct {
		address string
		secure  bool
		want    string
	}{
		{"127.0.0.1:7420", false, "http://127.0.0.1:7420"},
		{"127.0.0.1:7420", true, "https://127.0.0.1:7420"},
		{"[::1]:7420", false, "http://[::1]:7420"},
		{"tls://broker.example:7421", false, "https://broker.example:7421"},
		{"tls://0.0.0.0:7421", false, "https://localhost:7421"},
		{"tls://[::]:7421", false, "https://localhost:7421"},
		{"unix:///var/lib/brokerd/brokerd.sock", true, ""},
		{"unix:relative:7420", false, ""},
	} {
		if got, ok := local.PageAddress(tt.address, tt.secure); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s %v: %q %v", tt.address, tt.secure, got, ok)
		}
	}
}

// fakeBrowser puts a program in the place of the browser. It writes its arguments and the page into the
// returned pipe, and ends with an exit code.
func fakeBrowser(t *shell, code string) string {
	t.Helper()
	opened, bin := pipe(t), t.TempDir()
	script := "#!/bin/sh\n{ echo \"$*\"; find \"$1\" -perm 600; cat \"$1\"; } > " + opened + "\nexit " + code + "\n"
	for _, name := range []string{"xdg-open", "open"} {
		apptest.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700))
	}
	t.Setenv("PATH", bin+":"+t.Getenv("PATH"))
	return opened
}

func TestDashboardOpen_PassesTheLinkInAFileAndWaitsForTheLogin(tt *testing.T) {
	t := newShell(tt)
	startTCPBroker(t)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	opened := fakeBrowser(t, "0")
	done := make(chan result, 1)
	go func() { done <- ctl(t, "dashboard", "--open") }()
	text, err := os.ReadFile(opened)
	apptest.NoError(t, err)
	lines := strings.SplitN(string(text), "\n", 3)
	link := regexp.MustCompile(`url=(http://[^"]+)"`).FindStringSubmatch(lines[2])
	if link == nil || lines[1] != lines[0] || strings.Contains(lines[0], "#") || !strings.HasPrefix(lines[0], temp) {
		t.Fatalf("the browser got %q", text)
	}
	if status, got := exchange(t, link[1]); status != http.StatusOK {
		t.Errorf("%d %v", status, got)
	}
	if got := <-done; got.code != 0 || !strings.HasPrefix(got.out, link[1]+"\n") {
		t.Errorf("%+v", got)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary folder: %v, %v", left, err)
	}
}

func TestDashboardOpen_ReportsABrowserThatFails(tt *testing.T) {
	t := newShell(tt)
	startTCPBroker(t)
	opened := fakeBrowser(t, "3")
	done := make(chan result, 1)
	go func() { done <- ctl(t, "dashboard", "--open") }()
	apptest.NoError(t, apptest.Err(os.ReadFile(opened)))
	if got := <-done; got.code != problem.ExitError || !strings.Contains(got.err, "exit status 3; open the link by hand") {
		t.Errorf("%+v", got)
	}
	t.Setenv("PATH", t.TempDir())
	got := ctl(t, "dashboard", "--open")
	if got.code != problem.ExitError || !strings.Contains(got.err, "by hand") || !strings.Contains(got.out, "/login#") {
		t.Errorf("%+v", got)
	}
}
