package rpc

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
)

// Credentials recognises the secrets that clients present. Its methods may be called concurrently.
type Credentials interface {
	// Identify returns the grant of a secret that a client presents at a time; an empty secret is none.
	// client is the zero value for a client of the Unix socket. Errors: fault.Unauthenticated, and the
	// error of Refuse.
	Identify(secret string, client netip.Addr, at time.Time) (*identity.Grant, error)
	// Refuse counts a failed attempt, of a call or of a login, and returns the error that the client receives: cause, or
	// fault.Exhausted if the client's address has failed too often.
	Refuse(client netip.Addr, at time.Time, cause error) error
}

// authenticate returns what the client has proved: the rights of an operator on the Unix socket, whose
// user was checked when the client connected, else those of its certificate or credential. If it
// presents both, they must agree. A credential that a client of the socket presents must be valid too.
func (s *Server) authenticate(ctx context.Context, at time.Time) (*identity.Grant, error) {
	values := metadata.ValueFromIncomingContext(ctx, authorizationHeader)
	conn := connectionOf(ctx)
	switch {
	case len(values) > 0:
	case conn.local:
		return &s.operator, nil
	case conn.certificate != nil:
		return conn.certificate.agree(nil, at)
	}
	client := clientOf(ctx)
	secret, err := secretOf(values)
	if err != nil {
		return nil, s.credentials.Refuse(client, at, err)
	}
	grant, err := s.credentials.Identify(secret, client, at)
	if err != nil || conn.certificate == nil {
		return grant, err
	}
	return conn.certificate.agree(grant, at)
}

// secretOf returns the secret of an authorization header, empty if there is none.
func secretOf(values []string) (string, error) {
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		scheme, secret, found := strings.Cut(values[0], " ")
		if found && strings.EqualFold(scheme, "Bearer") && secret != "" {
			return secret, nil
		}
		return "", fault.New(fault.Unauthenticated, "CREDENTIAL_UNREADABLE", "the credential is not of the form: Bearer CREDENTIAL")
	}
	return "", fault.New(fault.Unauthenticated, "CREDENTIAL_UNREADABLE", "the call has %d credentials; one is allowed", len(values))
}

// clientOf returns the address of the client, the zero value on the Unix socket.
func clientOf(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	return address(p.Addr)
}

// address returns the IP address of a client, the zero value on the Unix socket.
func address(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}
