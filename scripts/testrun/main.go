// Command testrun runs the tests: `go test` once with each group of arguments, all groups at the same time.
//
//	testrun -race ./internal/... -- ./docs ./examples/...
//
// It prints the line of each package as the package ends, everything that a failed test wrote, why tests were
// skipped, and at the end the slowest packages and tests. The exit code is that of go test.
//
// The tests and their children run with an empty home folder, which is removed at the end, so that they leave
// the user's shell history and configuration alone.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

// silence is how long the program prints nothing at most: then it prints which packages are still running.
const silence = 30 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, os.Stdout, os.Stderr, groups(os.Args[1:]))
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}
	os.Exit(code) //nolint:gocritic // nothing is left that stop would do
}

// groups splits arguments at each "--".
func groups(args []string) [][]string {
	var all [][]string
	for len(args) > 0 {
		end := slices.Index(args, "--")
		if end < 0 {
			return append(all, args)
		}
		all = append(all, args[:end])
		args = args[end+1:]
	}
	return all
}

// run runs go test with each group of arguments, and returns the exit code: 0 if every test passed. The commands write
// to stderr concurrently.
func run(ctx context.Context, stdout, stderr io.Writer, groups [][]string) (int, error) {
	home, err := os.MkdirTemp("", "testrun")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(home) //nolint:errcheck // what remains is in the folder for temporary files
	env, err := environment(ctx, home)
	if err != nil {
		return 1, err
	}
	r := newReport(stdout)
	stopProgress := r.progress(silence)
	codes := make([]int, len(groups))
	errs := make([]error, len(groups))
	var running sync.WaitGroup
	for i, args := range groups {
		running.Go(func() { codes[i], errs[i] = goTest(ctx, r, stderr, env, args) })
	}
	running.Wait()
	stopProgress()
	r.end()
	for i, err := range errs {
		if err != nil {
			return 1, fmt.Errorf("go test %v: %w", groups[i], err)
		}
	}
	return slices.Max(append(codes, 0)), nil
}

// goTest runs go test once and passes its events to the report. It returns the exit code.
func goTest(ctx context.Context, r *report, stderr io.Writer, env, args []string) (int, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Env, cmd.Stderr = env, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go test then ends its tests
	cmd.WaitDelay = time.Minute
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	read := r.read(events)
	err = cmd.Wait()
	if cmd.ProcessState.ExitCode() > 0 {
		return cmd.ProcessState.ExitCode(), nil
	}
	if err != nil {
		return 1, err
	}
	return 0, read
}
