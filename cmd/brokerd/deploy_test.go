package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

const deploy = "../../deploy"

func TestExampleConfig_HasEveryKeyWithItsDefault(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	file := filepath.Join(deploy, "brokerd.yaml")
	got, err := settle(t, "--config", file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := settle(t)
	if err != nil {
		t.Fatal(err)
	}
	got.File = ""
	if len(got.Listen) == 0 {
		got.Listen = nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a copy of deploy/brokerd.yaml changes the defaults (-default +file):\n%s", diff)
	}

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	for _, key := range knownKeys() {
		if _, ok := values[key]; !ok {
			t.Errorf("deploy/brokerd.yaml does not have the key %q", key)
		}
	}
}

func TestExampleConfig_IsWhatTheManualLists(t *testing.T) {
	manual, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range knownKeys() {
		name := strings.ReplaceAll(key, "_", "-")
		for _, want := range []string{"`--" + name, "`" + variable(name) + "`", "`" + key + "`"} {
			if !strings.Contains(string(manual), want) {
				t.Errorf("docs/operations.md does not name %s", want)
			}
		}
	}
}

// The command of the unit is one that brokerd understands, and systemd knows every line of it.
func TestUnit_IsAccepted(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(deploy, "brokerd@.service"))
	if err != nil {
		t.Fatal(err)
	}
	unit := string(text)
	start := regexp.MustCompile(`(?m)^ExecStart=(\S+) (.*)$`).FindStringSubmatch(unit)
	if start == nil {
		t.Fatal("the unit starts nothing")
	}
	args := strings.Fields(start[2])
	config := slices.Index(args, "--config") + 1
	if config == 0 || config == len(args) {
		t.Fatalf("the unit gives no --config: %q", args)
	}
	args[config] = filepath.Join(deploy, "brokerd.yaml") // where it was installed from
	if got, err := settle(t, args...); err != nil || got.Data != "%S/brokerd/%i" {
		t.Errorf("the unit's command line: data %q, %v", got.Data, err)
	}

	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is missing; the unit's other lines are not looked at")
	}
	// systemd looks for the program, which need not be installed here.
	file := filepath.Join(t.TempDir(), "brokerd@user.service")
	if err := os.WriteFile(file, []byte(strings.Replace(unit, start[1], "/bin/true", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", file).CombinedOutput()
	if err != nil || len(out) > 0 { // what it does not know it only warns of
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
