package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

var exitCode = regexp.MustCompile(`\s+# exit code (\d+)$`)

// The commands of the page work one after the other, and end as it says.
func TestCoordination_CommandsWork(t *testing.T) {
	repository := t.TempDir()
	env := newcomer(t)
	startBroker(t, repository, env)
	shell := openTerminal(t, repository, env)
	shell.run(`export PATH="$PWD/bin:$PATH"`)
	shell.run("git init --quiet") // its top is the root of the paths
	n := 0
	for _, block := range fence.FindAllStringSubmatch(read(t, "coordination.md"), -1) {
		if block[1] != "sh" {
			t.Fatalf("a block of %q is tested by nobody:\n%s", block[1], block[2])
		}
		for _, command := range strings.Split(strings.TrimSpace(block[2]), "\n") {
			if m := exitCode.FindStringSubmatch(command); m != nil {
				command = strings.TrimSuffix(command, m[0]) + "; test $? = " + m[1]
			}
			shell.run(command)
			n++
		}
	}
	if n < 20 {
		t.Errorf("%d commands were found", n)
	}
}
