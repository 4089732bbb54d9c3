package main

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"testing"

	"brokerd/internal/processtest"
)

func TestInstall_ProgramsPagesAndCompletionsAndTheirRemoval(t *testing.T) {
	t.Parallel()
	bin, root := filepath.Dir(processtest.Build(t)), t.TempDir()
	makeTarget := func(target string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "make", "-C", "../..", target, "BIN="+bin, "DESTDIR="+root, "PREFIX=/opt/brokerd")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make %s: %v\n%s", target, err, out)
		}
	}
	makeTarget("install")
	prefix := filepath.Join(root, "opt/brokerd")
	for name, check := range map[string][]string{
		"bin/brokerd":                                    {"--version"},
		"bin/brokerctl":                                  {"--version"},
		"share/man/man1/brokerd-exec.1":                  nil,
		"share/man/man1/brokerctl-lock-run.1":            nil,
		"share/bash-completion/completions/brokerd":      nil,
		"share/bash-completion/completions/brokerctl":    nil,
		"share/zsh/site-functions/_brokerctl":            nil,
		"share/fish/vendor_completions.d/brokerctl.fish": nil,
	} {
		path := filepath.Join(prefix, name)
		command := append([]string{path}, check...)
		if check == nil {
			command = []string{"test", "-s", path}
		}
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	makeTarget("uninstall")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("make uninstall leaves %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
