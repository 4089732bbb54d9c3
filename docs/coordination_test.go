package docs_test

import (
	"regexp"
	"strings"
	"testing"

	"brokerd/internal/processtest"
)

var exitCode = regexp.MustCompile(`\s+# exit code (\d+)$`)

// A reader runs the commands of the page twice, one after the other. They end as the page says, and
// nothing of them remains to be done.
func TestCoordination_CommandsWorkTwiceAndLeaveNothing(t *testing.T) {
	t.Parallel()
	repository := t.TempDir()
	env := processtest.Environment(t)
	startBroker(t, repository, env)
	shell := openTerminal(t, repository, env)
	shell.run(`export PATH="$PWD/bin:$PATH"`)
	shell.run("git init --quiet") // its top is the root of the paths
	n := 0
	page := read(t, "coordination.md")
	for _, block := range fence.FindAllStringSubmatch(page+page, -1) {
		if block[1] != "sh" {
			t.Fatalf("a block of %q is not tested:\n%s", block[1], block[2])
		}
		for _, command := range strings.Split(strings.TrimSpace(block[2]), "\n") {
			if m := exitCode.FindStringSubmatch(command); m != nil {
				command = strings.TrimSuffix(command, m[0]) + "; test $? = " + m[1]
			}
			shell.run(command)
			n++
		}
	}
	if n < 40 {
		t.Errorf("%d commands were found", n)
	}
	if printed := shell.run("brokerctl explain"); printed != "nothing is stuck\n" {
		t.Errorf("after the page, explain reports\n%s", printed)
	}
	for _, agent := range []string{"builder-1", "builder-2", "critic-1"} {
		shell.run("brokerctl --agent " + agent + " next; test $? = 4")
		if printed := shell.run("brokerctl agent get " + agent + " -o json"); !strings.Contains(printed, `"claimable":0`) {
			t.Errorf("%s has work:\n%s", agent, printed)
		}
	}
}
