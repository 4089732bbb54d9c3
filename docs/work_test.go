package docs_test

import (
	"strings"
	"testing"

	"brokerd/internal/processtest"
)

// section returns the part of a page below a heading of the second level.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(read(t, page), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %s", page, heading)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

// A reader runs the commands of the section one after the other. They end as the page says, print the
// tables that it shows, and leave nothing to do.
func TestWork_TheCommandsOfTheTasksWork(t *testing.T) {
	t.Parallel()
	repository := t.TempDir()
	env := processtest.Environment(t)
	startBroker(t, repository, env)
	shell := openTerminal(t, repository, env)
	shell.run(`export PATH="$PWD/bin:$PATH"`)
	n, printed := 0, ""
	for _, block := range fence.FindAllStringSubmatch(section(t, "work.md", "Tasks"), -1) {
		switch block[1] {
		case "text":
			if printed != block[2] {
				t.Errorf("the page shows\n%sbut brokerctl prints\n%s", block[2], printed)
			}
			continue
		case "":
			continue // the states
		}
		script, document, lines := block[2], "", strings.Split(strings.TrimSpace(block[2]), "\n")
		if head, rest, found := strings.Cut(script, "<<END\n"); found {
			body, after, _ := strings.Cut(rest, "\nEND\n")
			document, lines = head+"<<END\n"+body+"\nEND", strings.Split(strings.TrimSpace(after), "\n")
			shell.run(document)
		}
		for _, command := range lines {
			if m := exitCode.FindStringSubmatch(command); m != nil {
				command = strings.TrimSuffix(command, m[0]) + "; test $? = " + m[1]
			}
			if out := shell.run(command); strings.Contains(command, " task list") {
				printed = out
			}
			n++
		}
	}
	if n < 20 {
		t.Errorf("%d commands were found", n)
	}
	if out := shell.run("brokerctl explain"); out != "nothing is stuck\n" {
		t.Errorf("after the page, explain reports\n%s", out)
	}
	if out := shell.run("brokerctl task list --state ready,waiting,claimed,blocked,failed 2>&1"); out != "no tasks\n" {
		t.Errorf("after the page, these tasks are left:\n%s", out)
	}
}
