package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"brokerd/cmd/brokerctl/decisions"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
)

func TestVote_IsOpenedCastAndClosed(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "b1/builder", "b2/builder")
	opened := fields(t, "--agent", "lead", "vote", "open", "Which database?", "SQLite", "PostgreSQL", "--to", "role:builder",
		"--body", "See the draft.", "--quorum", "50%", "--deadline", "2h", "--rule", "majority", "--task", "t1")
	id := at(t, opened, "id").(string)
	if at(t, opened, "electors") != json.Number("2") || at(t, opened, "quorum", "share") != json.Number("0.5") || at(t, opened, "rule") != "majority" ||
		at(t, opened, "task_id") != "t1" || at(t, opened, "state") != "open" {
		t.Errorf("opened %v", opened)
	}
	if out := must0(t, "vote", "list"); !strings.Contains(out, "SQLite 0, PostgreSQL 0") || !strings.Contains(out, "0/2") {
		t.Errorf("list:\n%s", out)
	}
	if out := must0(t, "--agent", "b1", "vote", "cast", id, "SQLite", "--reason", "no server"); out != "voted SQLite in "+id+": 1 of 2 electors\n" {
		t.Errorf("cast: %s", out)
	}
	if got := ctl(t, "--agent", "lead", "vote", "cast", id, "SQLite"); got.code != problem.ExitDenied {
		t.Errorf("the opener casts: %+v", got)
	}
	if got := ctl(t, "--agent", "b2", "vote", "cast", id, "MySQL"); got.code != problem.ExitNotFound || !strings.Contains(got.err, "SQLite") {
		t.Errorf("an unknown option: %+v", got)
	}
	if got := ctl(t, "--agent", "b1", "vote", "close", id); got.code != problem.ExitDenied {
		t.Errorf("an elector closes: %+v", got)
	}
	if got := ctl(t, "vote", "get", id, "--wait", "10ms"); got.code != problem.ExitNothing || !strings.Contains(got.out, "no server") {
		t.Errorf("a wait that ended: %+v", got)
	}
	if out := must0(t, "--agent", "lead", "vote", "close", id, "enough"); out != "closed "+id+": SQLite wins\n" {
		t.Errorf("close: %s", out)
	}
	if out := must0(t, "--agent", "lead", "vote", "close", id); !strings.HasPrefix(out, "closed before: "+id) {
		t.Errorf("close again: %s", out)
	}
	out := must0(t, "vote", "get", id, "--wait", "1m")
	for _, want := range []string{"SQLite wins", "SQLite 1, PostgreSQL 0", "1 of 2 electors, the quorum is 1", "See the draft.", "by lead", "enough", "b2"} {
		if !strings.Contains(out, want) {
			t.Errorf("get says nothing of %q:\n%s", want, out)
		}
	}
	if got := ctl(t, "vote", "list"); got.out != "" || !strings.Contains(got.err, "no votes") {
		t.Errorf("list: %+v", got)
	}
	if out := must0(t, "vote", "list", "--all", "--elector", "b2", "--from", "lead", "--task", "t1"); !strings.Contains(out, "SQLite wins") {
		t.Errorf("list --all:\n%s", out)
	}
}

func TestVote_WaitingReportsTheOutcomeByItsExitCode(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "b1/builder", "b2/builder")
	wait := func(options ...string) <-chan result {
		done := make(chan result, 1)
		go func() {
			done <- ctl(t, append([]string{"--agent", "lead", "vote", "open", "Deploy?", "yes", "no", "--wait", "1m", "-o", "json"}, options...)...)
		}()
		return done
	}
	for name, row := range map[string]struct {
		ballots [2]string
		code    int
		outcome string
	}{
		"winner": {[2]string{"yes", "yes"}, 0, "winner"},
		"tie":    {[2]string{"yes", "no"}, problem.ExitConflict, "tie"},
	} {
		done := wait("--to", "b1", "--to", "b2")
		for i, agent := range []string{"b1", "b2"} {
			letter := fields(t, "--agent", agent, "claim", "--wait", "25s")
			if at(t, letter, "message", "type") != "vote_initiate" {
				t.Fatalf("%s claimed %v", agent, letter)
			}
			must0(t, "--agent", agent, "vote", "cast", at(t, letter, "message", "payload", "vote_id").(string), row.ballots[i])
		}
		select {
		case got := <-done:
			if x := decode(t, got.out); got.code != row.code || at(t, x, "vote", "outcome") != row.outcome {
				t.Errorf("%s: %+v", name, got)
			}
		case <-time.After(patience):
			t.Fatal("open --wait does not end")
		}
	}
}

func TestVote_MistakesAreNamed(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"one option":     {[]string{"Q", "a"}, problem.ExitUsage, "the second option is missing"},
		"equal options":  {[]string{"Q", "a", "a"}, problem.ExitUsage, `OPTION 2: is "a" like another`},
		"two roles":      {[]string{"Q", "a", "b", "--to", "role:x", "--to", "role:y"}, problem.ExitUsage, "one role as role:NAME"},
		"a channel":      {[]string{"Q", "a", "b", "--to", "channel:x"}, problem.ExitUsage, "one role as role:NAME"},
		"no such role":   {[]string{"Q", "a", "b", "--to", "role:x"}, problem.ExitNotFound, `no agent has the role "x"`},
		"rule":           {[]string{"Q", "a", "b", "--rule", "most"}, problem.ExitUsage, "none of plurality, majority, unanimous"},
		"quorum":         {[]string{"Q", "a", "b", "--quorum", "half"}, problem.ExitUsage, "50% or 2/3"},
		"quorum of many": {[]string{"Q", "a", "b", "--quorum", "7"}, problem.ExitUsage, "has only 1 electors"},
		"share":          {[]string{"Q", "a", "b", "--quorum", "3/2"}, problem.ExitUsage, "quorum.share: is 1.5; 0 to 1 is allowed"},
		"deadline":       {[]string{"Q", "a", "b", "--deadline", "tomorrow"}, problem.ExitUsage, "--deadline"},
	} {
		got := ctl(t, append([]string{"--agent", "lead", "vote", "open"}, c.args...)...)
		if got.code != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for s, want := range map[string]*pb.Quorum{
		"3":    {Quorum: &pb.Quorum_Ballots{Ballots: 3}},
		"50%":  {Quorum: &pb.Quorum_Share{Share: 0.5}},
		"2/3":  {Quorum: &pb.Quorum_Share{Share: 2.0 / 3}},
		"100%": {Quorum: &pb.Quorum_Share{Share: 1}},
	} {
		if got, err := decisions.ParseQuorum(s); err != nil || !proto.Equal(got, want) {
			t.Errorf("%s is %v, %v", s, got, err)
		}
	}
}

func TestOption_ASwitchTakesEveryFormOfTrue(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	id := must0(t, "-a", "lead", "vote", "open", "Which?", "a", "b", "-o", "id")
	must0(t, "-a", "lead", "vote", "close", strings.TrimSpace(id))
	for form, want := range map[string]string{"--all": id, "--all=1": id, "--all=T": id, "--all=false": "", "--all=0": ""} {
		if got := must0(t, "vote", "list", form, "-o", "id"); got != want {
			t.Errorf("%s lists %q, want %q", form, got, want)
		}
	}
}
