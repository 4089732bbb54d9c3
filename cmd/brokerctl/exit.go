package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The exit codes, as the help and the API's page promise them.
const (
	exitDone        = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitNothing     = 4
	exitConflict    = 5
	exitLost        = 6
	exitDenied      = 7
	exitUnreachable = 69
	exitTimedOut    = 124 // of work and run: the command was ended by --timeout
	exitOwnFailure  = 125 // of work and run: brokerctl failed, not the command
	exitSignal      = 128 // plus the signal's number
)

// A failure is an error that knows its exit code. Without text nothing is printed.
type failure struct {
	code int
	text string
	err  error // what caused it; may be nil
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

// report prints err as one line on standard error and returns the exit code.
func (c *cli) report(ctx context.Context, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitDone
	}
	code, text := c.explain(err)
	if s, ok := signalOf(ctx); ok && (errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled) {
		return exitSignal + int(s)
	}
	if text == "" {
		return code
	}
	if code == exitUsage && (!c.ran || strings.HasPrefix(text, "unknown command")) {
		text += fmt.Sprintf(" (see %s --help)", cmd.CommandPath())
	}
	fmt.Fprintf(c.env.Err, "brokerctl: %s\n", oneLine(text))
	return code
}

// explain turns an error into an exit code and a text that says what was wrong and what to do.
func (c *cli) explain(err error) (code int, text string) {
	var f *failure
	if errors.As(err, &f) {
		return f.code, f.text
	}
	s, ok := grpcStatus(err)
	if !ok {
		if !c.ran {
			return exitUsage, usageText(err.Error())
		}
		return exitError, err.Error()
	}
	reason, retry := details(s)
	code = exitCode(s.Code(), reason)
	text = s.Message()
	if reason == "OPERATOR_ONLY" && c.found != nil && c.found.agent.value != "" {
		text += fmt.Sprintf("; %s says agent %s, with --agent '' you act as operator", c.found.agent.from, c.found.agent.value)
	}
	if retry != "" {
		text += "; try again in " + retry
	}
	return code, text
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

// details returns the reason of an error, and how long to wait before another try.
func details(s *status.Status) (reason, retry string) {
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			reason = d.GetReason()
		case *errdetails.RetryInfo:
			if d.GetRetryDelay().AsDuration() > 0 {
				retry = short(d.GetRetryDelay().AsDuration())
			}
		}
	}
	return reason, retry
}

// exitCode maps what the API answered.
func exitCode(code codes.Code, reason string) int {
	switch reason {
	case "CLAIM_LOST", "LOCK_LOST", "TOKEN_LOST", "FENCE_LOST", "STALE_INCARNATION":
		return exitLost
	case "NO_RESPONDERS": // nobody can answer, and trying again does not help
		return exitError
	case "AGENT_REQUIRED": // the command line did not say who is calling
		return exitUsage
	}
	switch code {
	case codes.OK:
		return exitDone
	case codes.InvalidArgument:
		return exitUsage
	case codes.NotFound:
		return exitNotFound
	case codes.AlreadyExists, codes.Aborted, codes.FailedPrecondition:
		return exitConflict
	case codes.PermissionDenied, codes.Unauthenticated:
		return exitDenied
	case codes.Unavailable:
		return exitUnreachable
	default:
		return exitError
	}
}

// oneLine joins the lines of a text.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(clean(s), func(r rune) bool { return r == '\n' }), "; ")
}
