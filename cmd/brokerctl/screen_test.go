package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
)

var uuidPattern = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-`)

func TestIDs_MessagesAreNamedByTheirNumber(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	question := sent(t, "--agent", "lead", "builder-1", "Which branch?", "--respond-within", "10m")
	must0(t, "--agent", "builder-1", "reply", question, "The branch login")
	for _, args := range [][]string{
		{"send", "builder-1", "more"}, {"inbox", "-o", "prompt"}, {"inbox"}, {"receive", "--thread", question, "-o", "prompt"},
		{"thread", "get", question}, {"message", "list", "--thread", question}, {"message", "list", "-o", "prompt", "--wide"},
	} {
		out := must0(t, append([]string{"--agent", "lead"}, args...)...)
		if uuidPattern.MatchString(out) || !strings.Contains(out, "builder-1") {
			t.Errorf("%q:\n%s", args, out)
		}
	}
	if out := must0(t, "--agent", "lead", "inbox", "-o", "prompt"); !strings.Contains(out, "thread "+question+", answers "+question) {
		t.Errorf("%s", out)
	}
	if out := must0(t, "--agent", "lead", "inbox", "--wide"); !uuidPattern.MatchString(out) {
		t.Errorf("%s", out)
	}
}

func TestIDs_OtherUUIDsAreNoNumbers(t *testing.T) {
	c, _, _ := printer(output.FormatTable)
	for id, want := range map[string]string{
		"01a20204-28d5-74cd-a0e1-000000000003": "3", "01a20204-28d5-74cd-a0e1-000000000008": "", "01a20204-28d5-44cd-a0e1-000000000003": "", "login-design": "login-design", "": "",
	} {
		if got := c.ShortID(id, 7); got != want {
			t.Errorf("%q is %q, want %q", id, got, want)
		}
	}
}

func TestTimes_AreRelativeOnATerminalAndAbsoluteInAPipe(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead")
	const rfc3339 = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`
	for _, test := range []struct {
		columns int
		args    string
		want    string
	}{
		{80, "", " now"},
		{0, "-o prompt", "seen now"},
		{0, "", rfc3339},
		{0, "--relative", " now"},
		{80, "--utc", rfc3339},
		{80, "--absolute", `\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z0-9+-]+`},
	} {
		got := t.invokeOn(t.Context(), test.columns, "", nil, append(strings.Fields(test.args), "agent", "list")...)
		if !regexp.MustCompile(test.want).MatchString(recently(got.out)) {
			t.Errorf("%d columns, %q: %+v", test.columns, test.args, got)
		}
	}
	for _, two := range [][]string{{"--utc", "--absolute"}, {"--utc", "--relative"}, {"--relative", "--absolute"}} {
		if got := ctl(t, append(two, "agent", "list")...); got.code != 2 {
			t.Errorf("%q: %+v", two, got)
		}
	}
}

func TestColor_IsForTerminalsUnlessTheUserSaysOtherwise(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead")
	for _, test := range []struct {
		columns int
		noColor string
		args    string
		want    bool
	}{
		{80, "", "", true}, {0, "", "", false}, {80, "1", "", false}, {0, "1", "--color always", true}, {80, "", "--color never", false},
		{80, "", "--color always -o prompt", false}, {80, "", "--color always -o json", false},
	} {
		t.Setenv("NO_COLOR", test.noColor)
		t.Setenv("TERM", "xterm")
		got := t.invokeOn(t.Context(), test.columns, "", nil, append(strings.Fields(test.args), "agent", "list")...)
		if strings.Contains(got.out, "\x1b[") != test.want {
			t.Errorf("%+v: %q", test, got.out)
		}
	}
	if got := ctl(t, "--color", "blue", "agent", "list"); got.code != 2 || !strings.Contains(got.err, "auto, always, never") {
		t.Errorf("%+v", got)
	}
}

func TestProgress_IsForTerminals(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	for _, terminal := range []bool{true, false} {
		var out, errs bytes.Buffer
		env := t.environment("", &out, &errs)
		env.ErrTerminal = terminal
		code := run(t.Context(), env, []string{"--agent", "builder-1", "claim", "--wait", "1ms"})
		begins := strings.HasPrefix(errs.String(), "waiting up to 1ms for work…\r\x1b[Kbrokerctl: nothing to claim")
		if code != problem.ExitNothing || begins != terminal || out.Len() > 0 {
			t.Errorf("terminal %v: code %d, %q", terminal, code, errs.String())
		}
	}
}
