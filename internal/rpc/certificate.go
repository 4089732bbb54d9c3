package rpc

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/validate"
)

// A certificate is the proof of an agent's identity that a connection has presented.
type certificate struct {
	grant   identity.Grant
	expires time.Time
}

// newCertificate returns the proof of a certificate that the handshake has verified; nil if the certificate names no
// agent. The caller calls stop when the connection closes.
func newCertificate(verified *x509.Certificate, clock clockwork.Clock) (c *certificate, stop func() bool) {
	session, agent, err := agentOf(verified)
	if err != nil || agent == "" { // the handshake has refused an error
		return nil, nil
	}
	ended, end := context.WithCancelCause(context.Background())
	c = &certificate{
		grant:   identity.Grant{Access: identity.Agent, Session: session, Agent: agent, Ended: ended},
		expires: verified.NotAfter,
	}
	return c, clock.AfterFunc(c.expires.Sub(clock.Now()), func() { end(c.expired()) }).Stop
}

func (c *certificate) expired() error {
	return fault.New(fault.Unauthenticated, "CERTIFICATE_EXPIRED",
		"the client's certificate has expired: connect again with a new one")
}

// agree returns the grant of a call that may present a credential besides the certificate. The two
// must name the same agent.
func (c *certificate) agree(credential *identity.Grant, at time.Time) (*identity.Grant, error) {
	switch {
	case !at.Before(c.expires):
		return nil, c.expired()
	case credential == nil:
		return &c.grant, nil
	case credential.Session != c.grant.Session || credential.Agent != c.grant.Agent:
		return nil, fault.New(fault.Denied, "CREDENTIAL_MISMATCH",
			"the certificate is for the agent %s of the session %s, and the credential is not: present only one of them",
			c.grant.Agent, c.grant.Session)
	}
	return credential, nil
}

// agentOf returns the agent that a certificate names with the URI
// brokerd:///sessions/SESSION/agents/AGENT; both names are empty if it has no URI with this scheme.
func agentOf(cert *x509.Certificate) (session, agent string, err error) {
	var found *url.URL
	for _, uri := range cert.URIs {
		switch {
		case uri.Scheme != "brokerd":
		case found != nil:
			return "", "", fmt.Errorf("the certificate names %s and %s: one agent is allowed", found, uri)
		default:
			found = uri
		}
	}
	if found == nil {
		return "", "", nil
	}
	parts := strings.Split(strings.TrimPrefix(found.EscapedPath(), "/"), "/")
	if len(parts) != 4 || parts[0] != "sessions" || parts[2] != "agents" || found.Host != "" || found.RawQuery != "" {
		return "", "", fmt.Errorf("the certificate names %q, which is not of the form brokerd:///sessions/SESSION/agents/AGENT", found)
	}
	session, err = url.PathUnescape(parts[1])
	if err == nil {
		agent, err = url.PathUnescape(parts[3])
	}
	if err != nil {
		return "", "", err
	}
	var c validate.Check
	c.Name("session", session)
	c.NewName("agent", agent)
	return session, agent, c.Err()
}
