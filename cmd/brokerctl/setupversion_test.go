package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/setup"
	"brokerd/internal/apptest"
)

// Only a program that knows such hooks gets them: an older one would wait for them.
func TestSetup_WakesProgramsThatCan(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+t.Getenv("PATH"))
	for _, c := range []struct {
		vendor, program, version, file, field string
		hooks                                 int
	}{
		{"claude-code", "claude", "2.1.330 (Claude Code)", ".claude/settings.json", "asyncRewake", 3}, // SessionStart, UserPromptSubmit, Stop
		{"claude-code", "claude", "2.2.0", ".claude/settings.json", "asyncRewake", 3},
		{"claude-code", "claude", "2.1.329", ".claude/settings.json", "asyncRewake", 0},
		{"claude-code", "claude", "1.9.999", ".claude/settings.json", "asyncRewake", 0},
		{"claude-code", "claude", "unknown", ".claude/settings.json", "asyncRewake", 0},
		{"codex", "codex", "codex-cli 0.169.0", ".codex/hooks.json", "async", 1}, // UserPromptSubmit
		{"codex", "codex", "codex-cli 0.168.9", ".codex/hooks.json", "async", 0},
		{"gemini", "gemini", "0.61.0", ".gemini/settings.json", "async", 0},
		{"cursor", "cursor-agent", "1.0", ".cursor/hooks.json", "async", 0},
	} {
		script := "#!/bin/sh\necho '" + c.version + "'\n"
		apptest.NoError(t, os.WriteFile(filepath.Join(bin, c.program), []byte(script), 0o700))
		got := ctl(t, "setup", c.vendor, "--agent", "builder-1") // its checks find no broker
		if strings.Contains(got.out, "Mail wakes the agent while its session is idle.") != (c.hooks > 0) {
			t.Errorf("%s: %s", c.version, got.out)
		}
		want := map[string]string{
			"2.1.330 (Claude Code)": "claude 2.1.330 is the tested version: mail arrives while its session is idle, in a turn, and without a screen (claude -p)",
			"2.2.0":                 "claude 2.2.0 was not tested; with 2.1.330: mail arrives while its session is idle, in a turn",
			"2.1.329":               "claude 2.1.329 was not tested; with 2.1.330: mail arrives in a turn, and without a screen (claude -p); from 2.1.330 on also",
			"unknown":               "claude of an unknown version was not tested",
			"codex-cli 0.169.0":     "codex 0.169.0 is the tested version: mail arrives while its session is idle (after the first prompt), in a turn",
			"0.61.0":                "gemini 0.61.0 is the tested version: mail arrives in a turn, and without a screen (gemini -p); nothing wakes an idle session",
			"1.0":                   "cursor-agent 1.0 was not tested, in no version",
		}[c.version]
		if check := ctl(t, "setup", c.vendor, "--check"); !strings.Contains(check.out, "ok         program: "+want) {
			t.Errorf("%s: no %q in\n%s", c.version, want, check.out)
		}
		text, err := os.ReadFile(filepath.Join(t.dir, c.file))
		if err != nil || strings.Count(string(text), "brokerctl hook "+c.vendor+" --agent builder-1 --wake") != c.hooks ||
			strings.Count(string(text), `"`+c.field+`": true, "timeout": 86400`) != c.hooks {
			t.Errorf("%s: %v\n%s", c.version, err, text)
		}
	}
}

// make vendors tests the versions that setup names, and has written the page about them.
func TestSetup_ThePageOfTestedProgramsHasTheirVersions(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile("../../" + name)
		apptest.NoError(t, err)
		return string(text)
	}
	script, page, index := read("scripts/vendors.sh"), read("docs/compat-agents.md"), read("docs/README.md")
	pinned := 0
	for _, v := range setup.Vendors(setup.Options{}) {
		if strings.HasPrefix(v.Tested, "none") {
			continue
		}
		pinned++
		if pin := regexp.MustCompile(`(?m)^claude_code=.*@` + regexp.QuoteMeta(v.Tested) + `( |$)`); !pin.MatchString(script) {
			t.Errorf("scripts/vendors.sh does not test %s %s", v.Title, v.Tested)
		}
		if row := "\n| " + v.Title + " | " + v.Tested + " |"; !strings.Contains(page, row) {
			t.Errorf("docs/compat-agents.md has no row with %s %s", v.Title, v.Tested)
		}
	}
	if pinned != 4 || !strings.Contains(index, "(compat-agents.md)") {
		t.Errorf("%d programs are tested; docs/README.md must link the page", pinned)
	}
}
