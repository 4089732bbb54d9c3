// Package examples_test runs the examples that tell a story, and compares the stories with the
// committed ones: go test ./examples -update writes them.
package examples_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/processtest"
)

var update = flag.Bool("update", false, "write the stories")

const patience = 10 * time.Minute

func TestStories_EndAsCommitted(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "jq"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing", program)
		}
	}
	programs := filepath.Dir(processtest.Build(t))
	for _, script := range scripts(t) {
		name := filepath.Dir(script)
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of a story is waiting
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var story, complaints bytes.Buffer
			cmd := exec.CommandContext(ctx, "./"+script)
			cmd.Env = append(processtest.Environment(t), "PATH="+programs+":"+os.Getenv("PATH"))
			cmd.Stdout, cmd.Stderr = &story, &complaints
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // the broker ends too
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v: %s\n%s", err, &complaints, &story)
			}
			compare(t, filepath.Join(name, "story.txt"), story.String())
		})
	}
}

func TestReadme_ListsEveryExample(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts(t) {
		if link := "(" + filepath.Join(filepath.Dir(script), "story.txt") + ")"; !strings.Contains(string(readme), link) {
			t.Errorf("README.md has no link %s", link)
		}
	}
}

// scripts returns the scripts of the stories.
func scripts(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("*/run.sh")
	if err != nil || len(found) == 0 {
		t.Fatalf("there are no examples: %v", err)
	}
	return found
}

// compare compares a story with the committed one, or with -update replaces that one.
func compare(t *testing.T, file, story string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(story), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	committed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(masked(string(committed)), masked(story)); diff != "" {
		t.Errorf("%s differs (-committed +now); -update writes it:\n%s", file, diff)
	}
}

// masks replace what differs from run to run.
var masks = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(` +`), " "},
	{regexp.MustCompile(`\b(now|\d+\w+ ago|in \d+\w+|(\d+m)?\d+m?s)\b`), "TIME"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z`), "TIME"},
	{regexp.MustCompile(`\bworker-[12]\b`), "worker"}, // either of them may take a task
}

// masked returns the lines of a story without what differs from run to run.
func masked(story string) []string {
	for _, m := range masks {
		story = m.pattern.ReplaceAllString(story, m.with)
	}
	return strings.Split(story, "\n")
}
