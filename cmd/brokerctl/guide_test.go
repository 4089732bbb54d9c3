package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/work"
)

// tokens estimates the tokens of a text for a language model: four characters each.
func tokens(s string) int { return (len(s) + 3) / 4 }

func TestGuide_FitsIntoAPromptAndNamesTheAgent(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder")
	long := strings.Repeat("n", 128)
	for _, test := range []struct {
		args []string
		most int
		want string
	}{
		{nil, 530, "You have no name yet; choose one: brokerctl init --agent NAME --role ROLE.\n"},
		{[]string{"--agent", "builder-1"}, 510, "You are the agent builder-1 in the session default. " +
			"Write brokerctl --agent builder-1, or export BROKERD_AGENT.\n"},
		{[]string{"--agent", long, "--session", long}, 560, "Write brokerctl --agent nnn"},
		{[]string{"--agent", "builder-9"}, 530, "Register first: brokerctl agent register builder-9 --role ROLE.\n"},
	} {
		out := must0(t, append(test.args, "guide")...)
		if n := tokens(out); n > test.most || !strings.Contains(out, test.want) {
			t.Errorf("%.60q: %d tokens, want %q in\n%s", test.args, n, test.want, out)
		}
	}
	configure(t, "agents: {builder-7: {}}\nsession: website\n")
	if out := must0(t, "guide"); !strings.Contains(out, "You are the agent builder-7 in the session website.") {
		t.Errorf("%s", out)
	}
	if got := at(t, fields(t, "guide"), "text"); !strings.Contains(fmt.Sprint(got), "builder-7") {
		t.Errorf("%v", got)
	}
	configure(t, "agents: {builder-7: {}, critic-1: {}}\n")
	if out := must0(t, "guide"); !strings.Contains(out, "This folder has several agents: builder-7, critic-1.") {
		t.Errorf("%s", out)
	}
}

// A coding agent's shell stops a command after two minutes.
func TestGuide_KeepsEveryWaitUnder100Seconds(t *testing.T) {
	waits := regexp.MustCompile(`--wait (\S+)`).FindAllStringSubmatch(work.GuideText, -1)
	for _, wait := range waits {
		if d, err := time.ParseDuration(wait[1]); err != nil || d >= 100*time.Second {
			t.Errorf("%s: %v", wait[0], err)
		}
	}
	if len(waits) < 3 {
		t.Errorf("%d waits were found", len(waits))
	}
}

// Each command of the guide exists with the flags that the guide gives it.
func TestGuide_NamesCommandsThatExist(t *testing.T) {
	root := newRoot(command.New(setting.Environment{}))
	commands := regexp.MustCompile(`(?m)brokerctl (.*)$`).FindAllStringSubmatch(work.GuideText, -1)
	for _, line := range commands {
		words := strings.Fields(line[1])
		if words[0] == "%s" || words[0] == "COMMAND" {
			continue
		}
		cmd, _, err := root.Find(words)
		if err != nil || cmd == root {
			t.Errorf("%s: %v", line[0], err)
			continue
		}
		for _, flag := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(line[1], -1) {
			if cmd.Flag(flag[1]) == nil {
				t.Errorf("%s has no --%s", cmd.CommandPath(), flag[1])
			}
		}
	}
	if len(commands) < 10 {
		t.Errorf("%d commands were found", len(commands))
	}
}

func TestGuide_WorksWithoutABroker(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	if out := must0(t, "guide"); !strings.Contains(out, "No broker answers") {
		t.Errorf("%s", out)
	}
}
