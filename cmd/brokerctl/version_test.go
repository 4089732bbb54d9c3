package main

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// fileVersion returns the content of the file VERSION.
func fileVersion(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("../../VERSION")
	apptest.NoError(t, err)
	return strings.TrimSpace(string(text))
}

func TestVersion_IsThatOfTheFileVERSION(tt *testing.T) {
	t := newShell(tt)
	want := fileVersion(t)
	isolate(t)
	if got := must0(t, "--version"); got != "brokerctl "+want+"\n" {
		t.Errorf("--version: %q", got)
	}
	if got := must0(t, "version"); got != "brokerctl "+want+", "+runtime.Version()+"\nbrokerd does not answer\n" {
		t.Errorf("version: %q", got)
	}
	fieldsWant := map[string]any{"version": want, "commit": "", "go": runtime.Version(), "daemon": ""}
	if diff := cmp.Diff(fieldsWant, fields(t, "version")); diff != "" {
		t.Errorf("version -o json (-want +got):\n%s", diff)
	}
}

func TestVersion_HasTheDaemonsForAgentsToo(tt *testing.T) {
	t := newShell(tt)
	want := fileVersion(t)
	startBrokerWith(t, func(c *app.Config) { c.Version = "0.3.9 (3c584ca0f1d2)" })
	for _, args := range [][]string{{"version"}, {"version", "--agent", "a", "--session", "nowhere"}} {
		if got := must0(t, args...); got != "brokerctl "+want+", "+runtime.Version()+"\nbrokerd 0.3.9 (3c584ca0f1d2)\n" {
			t.Errorf("%q: %q", args, got)
		}
	}
	if got := fields(t, "version")["daemon"]; got != "0.3.9 (3c584ca0f1d2)" {
		t.Errorf("version -o json has daemon %q", got)
	}
}
