// Package identity has the identity of a call: its agent, its session and its rights. A request never
// contains them: internal/rpc takes them from the credential or the local peer and from the call's
// metadata, and every rule receives a Caller.
package identity

import "context"

// Access is what a credential allows.
type Access int

// The levels of access. The zero value allows nothing.
const (
	None     Access = iota
	Observer        // reads
	Agent           // acts as one agent in its session
	Operator        // everything
)

// System is the name that an operator's call without an agent speaks as.
const System = "system"

// A Caller is the identity of one call. It is a value: copy it freely.
type Caller struct {
	Access      Access
	Session     string // name of the session, never empty
	Agent       string // name of the agent; empty for a call that speaks as System
	Role        string // the only role that the agent may register with; empty = any
	Incarnation int64  // the incarnation the client believes in; 0 = the newest
	Fence       int64  // the lock or token that the call depends on, by the revision of its grant; 0 = none
	Login       int64  // the credential that the call presents, if Login has issued it; 0 = another identity
}

// Name returns the agent's name, or System.
func (c Caller) Name() string {
	if c.Agent == "" {
		return System
	}
	return c.Agent
}

type key struct{}

// NewContext returns a context that carries c.
func NewContext(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// FromContext returns the caller that the context carries; without one, a Caller that
// may do nothing.
func FromContext(ctx context.Context) Caller {
	c, _ := ctx.Value(key{}).(Caller)
	return c
}
