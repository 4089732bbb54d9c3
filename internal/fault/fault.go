// Package fault names the kinds of error that brokerd answers with.
//
// Rules return an *Error (or wrap one); only internal/rpc knows how a kind
// becomes a gRPC status. An error that is no *Error counts as Internal: its text
// goes to the log and never to the client.
package fault

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind says what went wrong in terms of what the caller can do about it.
type Kind int

// The kinds, each with what the caller can do.
const (
	Internal        Kind = iota // a defect of the broker: report it
	Invalid                     // the request can never succeed: correct the named field
	NotFound                    // the named thing does not exist, or not for this caller
	Exists                      // the thing, or the request id, is already taken
	Precondition                // the state of the broker forbids it: look, then decide
	Conflict                    // somebody else was faster: read again and retry
	Denied                      // this caller may not do it
	Unauthenticated             // nobody knows who is calling: present a credential
	Exhausted                   // a limit is reached: retry after RetryAfter, or send less
	OutOfRange                  // the position asked for is no longer, or not yet, there
	Unavailable                 // the broker cannot serve now: retry
	Canceled                    // the caller gave up
	Deadline                    // the caller's deadline passed
)

// A Violation is one invalid field of a request.
type Violation struct {
	Field       string // as the proto spells it, with indexes: messages[3].priority
	Description string // what is wrong and what is allowed
}

// An Error is what a caller is told. Message is complete by itself, for people
// whose client decodes no details.
type Error struct {
	Kind       Kind
	Reason     string // UPPER_SNAKE, stable: clients may switch on it
	Message    string
	Violations []Violation
	Resource   string // with Name: what is missing or taken, such as "agent"
	Name       string
	RetryAfter time.Duration     // > 0 where waiting helps
	Metadata   map[string]string // further machine-readable facts, such as the current revision
	Cause      error             // for the log only
}

// Error returns the public message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the private cause.
func (e *Error) Unwrap() error { return e.Cause }

// New returns an error of the given kind. The reason is UPPER_SNAKE.
func New(kind Kind, reason, format string, args ...any) *Error {
	return &Error{Kind: kind, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Field returns an Invalid error that names one field of the request.
func Field(field, format string, args ...any) *Error {
	return Fields([]Violation{{field, fmt.Sprintf(format, args...)}})
}

// Fields returns an Invalid error that names every violation, or nil if there is none.
func Fields(violations []Violation) *Error {
	if len(violations) == 0 {
		return nil
	}
	var message strings.Builder
	for i, v := range violations {
		if i > 0 {
			message.WriteString("; ")
		}
		message.WriteString(v.Field + ": " + v.Description)
	}
	return &Error{Kind: Invalid, Reason: "INVALID_ARGUMENT", Message: message.String(), Violations: violations}
}

// Missing returns a NotFound error for a resource such as "agent" and its name, with the reason
// AGENT_NOT_FOUND.
func Missing(resource, name, format string, args ...any) *Error {
	e := New(NotFound, strings.ToUpper(resource)+"_NOT_FOUND", format, args...)
	e.Resource, e.Name = resource, name
	return e
}

// AgentRequired returns the error of a call that only an agent can make, and that names none.
func AgentRequired() *Error {
	return New(Precondition, "AGENT_REQUIRED", "this call needs a registered agent as its caller")
}

// SessionClosed returns the error of a change in a closed session.
func SessionClosed(name string) *Error {
	return New(Precondition, "SESSION_CLOSED",
		"the session %q is closed: it can be read, exported and deleted, and nothing in it changes any more", name)
}

// AgentGone returns the error of what an agent has waiting while it deregisters.
func AgentGone(agent string) *Error {
	return New(Precondition, "AGENT_NOT_REGISTERED",
		"agent %q is not registered any more; register it to go on", agent)
}

// AgentFailed returns the error of what an agent that has failed still has waiting.
func AgentFailed(agent string) *Error {
	return New(Precondition, "STALE_INCARNATION",
		"agent %q has failed: its lease is over, and what it held is lost; a call without an incarnation brings it back",
		agent)
}

// Stopping returns the error of a call that the broker ends because it stops.
func Stopping() *Error {
	e := New(Unavailable, "SHUTTING_DOWN", "the broker stops; connect again in a moment")
	e.RetryAfter = time.Second
	return e
}

// AgentStopped returns the error of what an agent still waits for when one of its programs reports that it has
// ended well. Another program of the agent calls again, which brings the agent back.
func AgentStopped(agent string) *Error {
	e := New(Unavailable, "AGENT_STOPPED",
		"agent %q has stopped: a program of it has ended well; call again to bring the agent back", agent)
	e.RetryAfter = time.Second
	return e
}

// KindOf returns the kind of the *Error in err's chain, Internal if there is none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// With adds a machine-readable fact and returns the error.
func (e *Error) With(key, value string) *Error {
	if e.Metadata == nil {
		e.Metadata = map[string]string{}
	}
	e.Metadata[key] = value
	return e
}
