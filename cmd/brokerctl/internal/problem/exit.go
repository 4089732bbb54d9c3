package problem

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
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// The exit codes.
const (
	ExitDone        = exitcode.Done
	ExitError       = exitcode.Error
	ExitUsage       = exitcode.Usage
	ExitNotFound    = exitcode.NotFound
	ExitNothing     = 4
	ExitConflict    = exitcode.Conflict
	ExitLost        = exitcode.Lost
	ExitDenied      = exitcode.Denied
	ExitRevise      = 10
	ExitRejected    = 11
	ExitUnreachable = exitcode.Unreachable
	ExitTimedOut    = 124
	ExitOwnFailure  = 125
	ExitNotRunnable = 126
	ExitNoCommand   = 127
	ExitSignal      = 128 // plus the signal's number
)

// ExitCodes are the exit codes with the code that an error has in JSON, and what they mean. The help
// of brokerctl prints them, and a test compares docs/json.md with them.
var ExitCodes = []struct {
	Exit    int
	Code    string
	Meaning string
}{
	{ExitDone, "", "done"},
	{ExitError, "error", "error without a code of its own, such as a full mailbox"},
	{ExitUsage, "usage", "the command line or the request is wrong"},
	{ExitNotFound, "not_found", "there is no such agent, role, message, session or other thing"},
	{ExitNothing, "nothing", "nothing is there, or the wait ended first"},
	{ExitConflict, "conflict", "the state forbids it: held by another, closed, changed"},
	{ExitLost, "lost", "the agent does not hold the claim, lock or token: stop the work on it"},
	{ExitDenied, "denied", "the caller may not do this"},
	{ExitRevise, "", "decision: the verdict is revise or defer"},
	{ExitRejected, "", "decision: the verdict is reject"},
	{ExitUnreachable, "unreachable", "the broker is unreachable, or cannot serve now"},
	{ExitTimedOut, "", "run, work: --timeout ended the command"},
	{ExitOwnFailure, "failed", "run, work: brokerctl itself failed, not the command"},
	{ExitNotRunnable, "not_runnable", "run, work: the command cannot be executed"},
	{ExitNoCommand, "no_command", "run, work: there is no such command"},
	{ExitSignal, "interrupted", "ended by signal N"},
}

// ExitHelp lists the exit codes, one a line.
func ExitHelp() string {
	var b strings.Builder
	for _, row := range ExitCodes {
		fmt.Fprintf(&b, "  %-6s %s\n", strconv.Itoa(row.Exit)+prompt.Either(row.Exit == ExitSignal, "+N", ""), row.Meaning)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// CodeOf returns the code that an error with this exit code has in JSON.
func CodeOf(exit int) string {
	for _, row := range ExitCodes {
		if row.Exit == min(exit, ExitSignal) {
			return row.Code
		}
	}
	return ""
}

// A Failure is an error that knows its exit code. Without text nothing is printed.
type Failure struct {
	Code int
	Text string
	Err  error // what caused it; may be nil

	Quoted string // for a language model: text of others, which is shown in a frame
}

// Error returns the text.
func (f *Failure) Error() string { return f.Text }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Usagef returns the error of a command line that cannot be right.
func Usagef(format string, args ...any) error {
	return &Failure{Code: ExitUsage, Text: fmt.Sprintf(format, args...)}
}

// Failf returns an error with an exit code.
func Failf(code int, format string, args ...any) error {
	return &Failure{Code: code, Text: fmt.Sprintf(format, args...)}
}

// Interrupted is the cause of a context that a signal ended.
type Interrupted struct{ Signal os.Signal }

// Error names the signal.
func (i *Interrupted) Error() string { return "interrupted by " + i.Signal.String() }

// SignalOf returns the signal that ended the context, if one did.
func SignalOf(ctx context.Context) (syscall.Signal, bool) {
	var i *Interrupted
	if !errors.As(context.Cause(ctx), &i) {
		return 0, false
	}
	s, ok := i.Signal.(syscall.Signal)
	return s, ok
}

// UsageText says in plain words what cobra says of groups of options.
func UsageText(text string) string {
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

// Status returns the status in err's chain. status.FromError would put the wrapping text in
// front of the broker's own, which is complete by itself.
func Status(err error) (*status.Status, bool) {
	var s interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &s) {
		return nil, false
	}
	return s.GRPCStatus(), true
}

// A Problem is a failed command as brokerctl reports it. Its Code is one of exitCodes.
type Problem struct {
	jsonform.Problem
	Exit int

	Quoted string // for a language model: the message of the broker, which quotes other agents
}

// Text is the message with the time to wait.
func (p Problem) Text() string {
	if p.Retry == 0 {
		return p.Message
	}
	return p.Message + "; try again in " + prompt.Duration(p.Retry)
}
