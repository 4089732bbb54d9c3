package docs_test

import (
	"os/exec"
	"strings"
	"testing"

	"brokerd/internal/processtest"
)

// A reader runs the commands of the page.
func TestBridge_ScriptsExchangeMessages(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"jq", "flock"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the page needs %s", program)
		}
	}
	dir, env := t.TempDir(), processtest.Environment(t)
	startBroker(t, dir, env)
	shell := openTerminal(t, dir, env)
	shell.run(`export PATH="$PWD/bin:$PATH"`)
	var printed strings.Builder
	for _, command := range commandsOf(t, "bridge.md") {
		if command == "kill $bridge; wait $bridge" {
			command += "; test $? = 143"
		}
		printed.WriteString(shell.run(command))
	}
	for _, want := range []string{"\nlead: The parser\n", "\nlead: Begin\n", "\nlead: The second\n"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("%q is not in\n%s", want, printed.String())
		}
	}
}
