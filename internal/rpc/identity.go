package rpc

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"brokerd/internal/caller"
	"brokerd/internal/fault"
	"brokerd/internal/valid"
)

// The metadata that says who is calling.
const (
	agentHeader         = "brokerd-agent"
	sessionHeader       = "brokerd-session"
	incarnationHeader   = "brokerd-incarnation"
	fenceHeader         = "brokerd-fence"
	authorizationHeader = "authorization"
)

const defaultSession = "default"

// identify finds out who is calling: fault.Unauthenticated if nobody can know, fault.Invalid if the
// metadata names what cannot be, fault.Exhausted if there is too much of it.
func (s *Server) identify(ctx context.Context) (caller.Caller, error) {
	if err := checkHeaders(ctx); err != nil {
		return caller.Caller{}, err
	}
	if err := s.authenticate(ctx); err != nil {
		return caller.Caller{}, err
	}
	var c valid.Check
	who := caller.Caller{Access: caller.Operator, Session: defaultSession}
	if name, given := header(ctx, &c, sessionHeader); given {
		c.Name(sessionHeader, name)
		who.Session = name
	}
	if name, given := header(ctx, &c, agentHeader); given {
		c.NewName(agentHeader, name)
		who.Agent, who.Access = name, caller.Agent
	}
	if text, given := header(ctx, &c, incarnationHeader); given {
		who.Incarnation = ofAgent(&c, who, incarnationHeader, text, "the registration of the agent returned")
	}
	if text, given := header(ctx, &c, fenceHeader); given {
		who.Fence = ofAgent(&c, who, fenceHeader, text, "the acquisition of the lock or token returned")
	}
	return who, c.Err()
}

// ofAgent reads a header with a number that belongs to the calling agent.
func ofAgent(c *valid.Check, who caller.Caller, key, text, source string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || n < 1:
		c.Fail(key, "must be the number, from 1, that %s", source)
	case who.Agent == "":
		c.Fail(key, "is given without an agent")
	}
	return n
}

// authenticate lets a local peer pass, whose user was checked when it connected, and wants a credential of
// everybody else. One that is presented must be right, wherever it comes from.
func (s *Server) authenticate(ctx context.Context) error {
	values := metadata.ValueFromIncomingContext(ctx, authorizationHeader)
	if len(values) == 0 {
		if local(ctx) {
			return nil
		}
		return fault.New(fault.Unauthenticated, "CREDENTIAL_REQUIRED",
			"a call over TCP needs a credential; the operator's is in the file %s of the data folder", CredentialFile)
	}
	if len(values) > 1 {
		return fault.New(fault.Unauthenticated, "CREDENTIAL_UNREADABLE", "the call has %d credentials; one is allowed", len(values))
	}
	scheme, token, found := strings.Cut(values[0], " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return fault.New(fault.Unauthenticated, "CREDENTIAL_UNREADABLE", "the credential is not of the form: Bearer CREDENTIAL")
	}
	if !s.credential.matches(token) {
		return fault.New(fault.Unauthenticated, "CREDENTIAL_UNKNOWN", "the credential is not valid for this broker")
	}
	return nil
}

// local reports whether the call comes through a Unix socket.
func local(ctx context.Context) bool { return connectionOf(ctx).local }

// linkOf returns the link that the call comes through, nil if there is none.
func linkOf(ctx context.Context) *link { return connectionOf(ctx).link }

func connectionOf(ctx context.Context) connection {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return connection{}
	}
	info, _ := p.AuthInfo.(connection)
	return info
}

// header returns the one value of a header, and whether there is one. Two of them contradict each other.
func header(ctx context.Context, c *valid.Check, key string) (string, bool) {
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
