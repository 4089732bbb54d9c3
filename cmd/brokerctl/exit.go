package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/grpc/status"

	"brokerd/cmd/internal/exitcode"
	"brokerd/internal/prompt"
)

// The exit codes.
const (
	exitDone        = exitcode.Done
	exitError       = exitcode.Error
	exitUsage       = exitcode.Usage
	exitNotFound    = exitcode.NotFound
	exitNothing     = 4
	exitConflict    = exitcode.Conflict
	exitLost        = exitcode.Lost
	exitDenied      = exitcode.Denied
	exitRevise      = 10
	exitRejected    = 11
	exitUnreachable = exitcode.Unreachable
	exitTimedOut    = 124
	exitOwnFailure  = 125
	exitNotRunnable = 126
	exitNoCommand   = 127
	exitSignal      = 128 // plus the signal's number
)

// exitCodes are the exit codes with the code that an error has in JSON, and what they mean. The help
// of brokerctl prints them, and a test compares docs/json.md with them.
var exitCodes = []struct {
	exit    int
	code    string
	meaning string
}{
	{exitDone, "", "done"},
	{exitError, "error", "error without a code of its own, such as a full mailbox"},
	{exitUsage, "usage", "the command line or the request is wrong"},
	{exitNotFound, "not_found", "there is no such agent, role, message, session or other thing"},
	{exitNothing, "nothing", "nothing is there, or the wait ended first"},
	{exitConflict, "conflict", "the state forbids it: held by another, closed, changed"},
	{exitLost, "lost", "the agent does not hold the claim, lock or token: stop the work on it"},
	{exitDenied, "denied", "the caller may not do this"},
	{exitRevise, "", "decision: the verdict is revise or defer"},
	{exitRejected, "", "decision: the verdict is reject"},
	{exitUnreachable, "unreachable", "the broker is unreachable, or cannot serve now"},
	{exitTimedOut, "", "run, work: --timeout ended the command"},
	{exitOwnFailure, "failed", "run, work: brokerctl itself failed, not the command"},
	{exitNotRunnable, "not_runnable", "run, work: the command cannot be executed"},
	{exitNoCommand, "no_command", "run, work: there is no such command"},
	{exitSignal, "interrupted", "ended by signal N"},
}

// exitHelp lists the exit codes, one a line.
func exitHelp() string {
	var b strings.Builder
	for _, row := range exitCodes {
		fmt.Fprintf(&b, "  %-6s %s\n", strconv.Itoa(row.exit)+prompt.Either(row.exit == exitSignal, "+N", ""), row.meaning)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// codeOf returns the code that an error with this exit code has in JSON.
func codeOf(exit int) string {
	for _, row := range exitCodes {
		if row.exit == min(exit, exitSignal) {
			return row.code
		}
	}
	return ""
}

// A failure is an error that knows its exit code. Without text nothing is printed.
type failure struct {
	code int
	text string
	err  error // what caused it; may be nil

	quoted string // for a language model: text of others, which is shown in a frame
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.err }

// usagef returns the error of a command line that cannot be right.
func usagef(format string, args ...any) error {
	return &failure{code: exitUsage, text: fmt.Sprintf(format, args...)}
}

// failf returns an error with an exit code.
func failf(code int, format string, args ...any) error {
	return &failure{code: code, text: fmt.Sprintf(format, args...)}
}

// interrupted is the cause of a context that a signal ended.
type interrupted struct{ signal os.Signal }

func (i *interrupted) Error() string { return "interrupted by " + i.signal.String() }

// signalOf returns the signal that ended the context, if one did.
func signalOf(ctx context.Context) (syscall.Signal, bool) {
	var i *interrupted
	if !errors.As(context.Cause(ctx), &i) {
		return 0, false
	}
	s, ok := i.signal.(syscall.Signal)
	return s, ok
}

// usageText says in plain words what cobra says of groups of options.
func usageText(text string) string {
	if list, ok := enclosed(text, "if any flags in the group ["); ok {
		return "--" + strings.Join(strings.Fields(list), " and --") + " exclude each other"
	}
	if list, ok := enclosed(text, "at least one of the flags in the group ["); ok {
		return "give at least one of --" + strings.Join(strings.Fields(list), ", --")
	}
	return text
}

// enclosed returns what follows the prefix, up to the next bracket.
func enclosed(text, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	list, _, _ := strings.Cut(rest, "]")
	return list, ok
}

// grpcStatus returns the status in err's chain. status.FromError would put the wrapping text in
// front of the broker's own, which is complete by itself.
func grpcStatus(err error) (*status.Status, bool) {
	var s interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &s) {
		return nil, false
	}
	return s.GRPCStatus(), true
}
