// Command brokerd is the daemon: flags, environment and configuration file become an app.Config,
// and signals end what it runs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
)

// Exit codes.
const (
	exitError = 1
	exitUsage = 2
)

func main() {
	// The writer is in C or waits for the disk most of the time, and holds its processor until the runtime notices.
	// With two more than there are the others go on meanwhile: worth a tenth with 64 senders on two cores.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	collectGarbage(ctx)
	err := newRoot().ExecuteContext(ctx)
	if err == nil {
		return
	}
	var exit *exitCode
	if errors.As(err, &exit) && exit.err == nil {
		os.Exit(exit.code)
	}
	fmt.Fprintln(os.Stderr, "brokerd:", explain(err))
	if exit != nil {
		os.Exit(exit.code)
	}
	var usage usageError
	if errors.As(err, &usage) {
		os.Exit(exitUsage)
	}
	os.Exit(exitError)
}

// usageError is an error in the command line, the environment or the configuration file.
type usageError struct{ error }

// Unwrap returns the error itself.
func (e usageError) Unwrap() error { return e.error }

// explain adds to an error the causes that its own text leaves out.
func explain(err error) string {
	text := err.Error()
	for cause := errors.Unwrap(err); cause != nil; cause = errors.Unwrap(cause) {
		if !strings.Contains(text, cause.Error()) {
			text += ": " + cause.Error()
		}
	}
	return text
}
