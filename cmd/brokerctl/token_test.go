package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestToken_GoesFromHandToHand(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "builder-2/builder", "critic-1/critic")
	as := func(who string, args ...string) []string { return append([]string{"--agent", who}, args...) }
	name := []string{"review", "login page"}
	token := func(verb string, more ...string) []string {
		return append(append([]string{"token", verb}, name...), more...)
	}

	if got := ctl(t, token("get")...); got.code != 3 {
		t.Errorf("nobody ever acquired it: %+v", got)
	}
	first := fields(t, as("builder-1", token("acquire", "--longest", "2h", "--reason", "drafts it")...)...)
	if at(t, first, "outcome") != "granted" {
		t.Errorf("%v", first)
	}
	if got := ctl(t, as("builder-2", token("acquire")...)...); got.code != 5 || !strings.Contains(got.err, "review 'login page' is held by builder-1, ends in ") {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, as("builder-2", token("acquire", "--wait", "20ms", "--keep")...)...); got.code != 4 {
		t.Errorf("%+v", got)
	}
	if out := must0(t, token("get")...); !strings.Contains(out, "contested") || !strings.Contains(out, "longest hold  2h") || !strings.Contains(out, "builder-2, kept") {
		t.Errorf("%s", out)
	}
	if out := must0(t, "token", "list", "--state", "contested"); !strings.Contains(out, "review 'login page'  contested  builder-1") {
		t.Errorf("%s", out)
	}
	if out := must0(t, as("builder-1", token("extend", "--for", "1h")...)...); !strings.HasPrefix(out, "extended review 'login page', ends in 1h") {
		t.Errorf("%s", out)
	}
	if out := must0(t, as("builder-1", token("pass", "critic-1", "--note", "first draft")...)...); out != "passed review 'login page' to critic-1\n" {
		t.Errorf("%s", out)
	}
	if got := ctl(t, as("builder-1", token("extend")...)...); got.code != 6 {
		t.Errorf("extended what was passed on: %+v", got)
	}
	if out := must0(t, as("critic-1", token("acquire")...)...); !strings.Contains(out, "passed by builder-1: first draft\n") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, as("critic-1", token("pass", "stranger")...)...); got.code != 3 {
		t.Errorf("%+v", got)
	}
	if out := must0(t, as("critic-1", token("pass", "role:builder")...)...); out != "passed review 'login page' to role:builder: the first that asks gets it\n" {
		t.Errorf("%s", out)
	}
	if out := must0(t, as("builder-1", token("acquire")...)...); !strings.Contains(out, "passed by critic-1") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, as("builder-1", token("revoke", "--reason", "x")...)...); got.code != 7 {
		t.Errorf("an agent revoked: %+v", got)
	}
	if out := must0(t, token("revoke", "--reason", "builder-1 hangs")...); out != "took review 'login page' from builder-1\n" {
		t.Errorf("%s", out)
	}
	if out := must0(t, as("builder-2", token("release")...)...); out != "released review 'login page'\n" {
		t.Errorf("%s", out)
	}
	if got := ctl(t, as("builder-2", token("release")...)...); got.code != 6 || got.out != "" {
		t.Errorf("%+v", got)
	}
}

func TestTokenRun_TheCommandHasItsTurnAndMayPassItOn(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "critic-1/critic")
	script := `brokerctl() { ` + asProgram + `=1 ` + self(t) + ` "$@"; }
echo "$BROKERD_TOKEN_TYPE $BROKERD_TOKEN_SCOPE"
test "$(brokerctl token list -o json | grep -c "$BROKERD_FENCE")" = 1 || exit 70
brokerctl token pass "$BROKERD_TOKEN_TYPE" "$BROKERD_TOKEN_SCOPE" critic-1 || exit 71
exit 5`
	got := ctl(t, "--agent", "builder-1", "token", "run", "review", "login", "--", "sh", "-c", script)
	if got.code != 5 || !strings.HasPrefix(got.out, "review login\n") {
		t.Errorf("%+v", got)
	}
	if k := fields(t, "token", "get", "review", "login"); at(t, k, "token", "agent") != "critic-1" {
		t.Errorf("%v", k)
	}
}

func TestTokenRun_ALostTokenStopsTheCommandAtOnce(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	_, ended := holdingRun(t, []string{"token", "run", "review", "login"}, `READY; exec sleep 1000`)
	if got := ctl(t, "--agent", "builder-1", "token", "run", "review", "login", "--", "true"); got.code != 5 {
		t.Errorf("busy: %+v", got)
	}
	if out := must0(t, "token", "revoke", "review", "login", "--ticket", "4711", "--reason", "?"); out !=
		"no request 4711 waits for review login\n" {
		t.Errorf("%q", out)
	}
	must0(t, "token", "revoke", "review", "login", "--reason", "builder-1 hangs")
	if got := <-ended; got.code != 6 || !strings.Contains(got.err, "the token review login was lost") {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "token", "run", "review", "login", "--", "true"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if k := fields(t, "token", "get", "review", "login"); at(t, k, "token", "state") != "available" || at(t, k, "token", "waiting") != json.Number("0") {
		t.Errorf("%v", k)
	}
}
