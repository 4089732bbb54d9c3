package rpc

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/tracing"
	"brokerd/internal/validate"
)

// The metadata that says who is calling.
const (
	agentHeader         = "brokerd-agent"
	sessionHeader       = "brokerd-session"
	incarnationHeader   = "brokerd-incarnation"
	fenceHeader         = "brokerd-fence"
	authorizationHeader = "authorization"
	traceParentHeader   = "traceparent"
)

const defaultSession = "default"

// identify returns who is calling, and the grant that proves it. Errors: fault.Unauthenticated if the
// client proves no identity, fault.Denied if the metadata contradicts the credential, fault.Invalid if
// the metadata is malformed, fault.Exhausted if it is too large or the client has failed too often.
func (s *Server) identify(ctx context.Context, at time.Time) (identity.Caller, *identity.Grant, error) {
	if err := checkHeaders(ctx); err != nil {
		return identity.Caller{}, nil, err
	}
	grant, err := s.authenticate(ctx, at)
	if err != nil {
		return identity.Caller{}, nil, err
	}
	var c validate.Check
	who := identity.Caller{
		Access: grant.Access, Session: cmp.Or(grant.Session, defaultSession), Agent: grant.Agent, Role: grant.Role,
		Login: grant.Login,
	}
	if name, given := header(ctx, &c, sessionHeader); given {
		c.Name(sessionHeader, name)
		who.Session = name
	}
	if name, given := header(ctx, &c, agentHeader); given {
		c.NewName(agentHeader, name)
		who.Agent = name
	}
	if text, given := header(ctx, &c, incarnationHeader); given {
		who.Incarnation = ofAgent(&c, who, incarnationHeader, text, "the registration of the agent returned")
	}
	if text, given := header(ctx, &c, fenceHeader); given {
		who.Fence = ofAgent(&c, who, fenceHeader, text, "the acquisition of the lock or token returned")
	}
	if err := c.Err(); err != nil {
		return who, grant, err
	}
	if err := checkBinding(grant, who); err != nil {
		return who, grant, err
	}
	if who.Agent != "" {
		who.Access = identity.Agent // an operator that names an agent has that agent's rights
	}
	return who, grant, nil
}

// checkBinding refuses a caller whose metadata contradicts the credential.
func checkBinding(grant *identity.Grant, who identity.Caller) error {
	switch {
	case grant.Session != "" && who.Session != grant.Session:
		return bound(sessionHeader, "the credential is for the session %s, and the call names the session %s", grant.Session, who.Session)
	case grant.Agent != "" && who.Agent != grant.Agent:
		return bound(agentHeader, "the credential is for the agent %s, and the call names the agent %s", grant.Agent, who.Agent)
	case grant.Access == identity.Observer && who.Agent != "":
		return bound(agentHeader, "the credential only permits reading, and the call names the agent %s", who.Agent)
	}
	return nil
}

func bound(header, format string, args ...any) error {
	return fault.New(fault.Denied, "CREDENTIAL_BOUND", format, args...).With("header", header)
}

// ofAgent reads a header with a number that belongs to the calling agent.
func ofAgent(c *validate.Check, who identity.Caller, key, text, source string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || n < 1:
		c.Fail(key, "must be the number, from 1, that %s", source)
	case who.Agent == "":
		c.Fail(key, "is given without an agent")
	}
	return n
}

func connectionOf(ctx context.Context) connection {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return connection{}
	}
	info, _ := p.AuthInfo.(connection)
	return info
}

// withTraceParent returns a context that carries the caller's span. W3C Trace Context requires that a
// malformed traceparent, or more than one, counts as absent.
func withTraceParent(ctx context.Context) context.Context {
	values := metadata.ValueFromIncomingContext(ctx, traceParentHeader)
	if len(values) != 1 {
		return ctx
	}
	span, ok := tracing.Parse(values[0])
	if !ok {
		return ctx
	}
	return tracing.NewContext(ctx, span)
}

// header returns the one value of a header, and whether there is one. Two of them contradict each other.
func header(ctx context.Context, c *validate.Check, key string) (string, bool) {
	values := metadata.ValueFromIncomingContext(ctx, key)
	switch len(values) {
	case 0:
		return "", false
	case 1:
		return values[0], true
	}
	c.Fail(key, "is given %d times", len(values))
	return "", false
}
