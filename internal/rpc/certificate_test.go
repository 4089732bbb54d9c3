package rpc_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"brokerd/cmd/brokerctl/authority"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/identity"
	"brokerd/internal/rpc"
	"brokerd/internal/testkit"
)

// certificateValidity is the validity of the certificates of a ca.
const certificateValidity = time.Hour

// A ca issues the certificates of a test.
type ca struct {
	*authority.Authority
	t     *testing.T
	dir   string
	clock *clockwork.FakeClock
	pair  tls.Certificate
}

func newCA(t *testing.T, clock *clockwork.FakeClock) *ca {
	t.Helper()
	dir := t.TempDir()
	a, root, err := authority.Open(dir, clock.Now())
	if err == nil {
		_, err = a.Server([]string{"127.0.0.1"}, authority.Term{Validity: 10 * certificateValidity})
	}
	testkit.NoError(t, err)
	pair, err := tls.LoadX509KeyPair(root.File, root.Key)
	testkit.NoError(t, err)
	return &ca{a, t, dir, clock, pair}
}

// agent returns the certificate of an agent.
func (c *ca) agent(session, agent string) tls.Certificate {
	c.t.Helper()
	issued, err := c.Agent(session, agent, authority.Term{Validity: certificateValidity})
	testkit.NoError(c.t, err)
	pair, err := tls.LoadX509KeyPair(issued.File, issued.Key)
	testkit.NoError(c.t, err)
	return pair
}

// naming returns a client certificate with any URIs.
func (c *ca) naming(uris ...string) tls.Certificate {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(c.t, err)
	template := &x509.Certificate{
		NotBefore: c.clock.Now(), NotAfter: c.clock.Now().Add(certificateValidity), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, text := range uris {
		uri, err := url.Parse(text)
		testkit.NoError(c.t, err)
		template.URIs = append(template.URIs, uri)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.pair.Leaf, key.Public(), c.pair.PrivateKey)
	testkit.NoError(c.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// serve starts a server that speaks TLS and accepts the certificates of the authority.
func (c *ca) serve(change ...func(*rpc.Options)) *world {
	c.t.Helper()
	certificates, err := rpc.LoadCertificates(rpc.TLSFiles{
		Cert: filepath.Join(c.dir, "server.pem"), Key: filepath.Join(c.dir, "server.key"), ClientCA: filepath.Join(c.dir, "ca.pem"),
	}, c.clock, zap.NewNop())
	testkit.NoError(c.t, err)
	return serve(c.t, append(change, func(o *rpc.Options) { o.Certificates, o.Clock = certificates, c.clock })...)
}

// dial connects with certificates of a client.
func (c *ca) dial(w *world, own ...tls.Certificate) *grpc.ClientConn {
	c.t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(c.pair.Leaf)
	conn, err := grpc.NewClient(w.tcp, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, Certificates: own, Time: c.clock.Now,
		// The client offers its certificate whatever authorities the server asks for.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(own) == 0 {
				return &tls.Certificate{}, nil
			}
			return &own[0], nil
		},
	})))
	testkit.NoError(c.t, err)
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestCertificate_IdentifiesAnAgent(t *testing.T) {
	t.Parallel()
	c := newCA(t, clockwork.NewFakeClock())
	w := c.serve()
	w.grants["builder-1"] = &identity.Grant{Access: identity.Agent, Session: "team", Agent: "builder-1", Role: "builder"}
	w.grants["builder-2"] = &identity.Grant{Access: identity.Agent, Session: "team", Agent: "builder-2"}
	w.grants["other team"] = &identity.Grant{Access: identity.Agent, Session: "other", Agent: "builder-1"}
	w.grants["reader"] = &identity.Grant{Access: identity.Observer, Session: "team"}
	certified, stranger, bare := c.dial(w, c.agent("team", "builder-1")), c.dial(w, c.naming("https://example.org")), c.dial(w)
	bearer := func(secret string) []string { return []string{"authorization", "Bearer " + secret} }
	for _, call := range []struct {
		conn    *grpc.ClientConn
		headers []string
		who     string // session, name, access (2 agent, 3 operator), incarnation
		code    codes.Code
		reason  string
	}{
		{certified, nil, "team builder-1/2/0", 0, ""},
		{certified, []string{"brokerd-agent", "builder-1", "brokerd-session", "team"}, "team builder-1/2/0", 0, ""},
		{certified, []string{"brokerd-agent", "builder-2"}, "", codes.PermissionDenied, "CREDENTIAL_BOUND"},
		{certified, []string{"brokerd-session", "other"}, "", codes.PermissionDenied, "CREDENTIAL_BOUND"},
		{certified, bearer("builder-1"), "team builder-1/2/0", 0, ""},
		{certified, bearer("builder-2"), "", codes.PermissionDenied, "CREDENTIAL_MISMATCH"},
		{certified, bearer("other team"), "", codes.PermissionDenied, "CREDENTIAL_MISMATCH"},
		{certified, bearer("reader"), "", codes.PermissionDenied, "CREDENTIAL_MISMATCH"},
		{certified, bearer(w.secret), "", codes.PermissionDenied, "CREDENTIAL_MISMATCH"},
		{certified, append(bearer(w.secret), "brokerd-agent", "builder-1", "brokerd-session", "team"), "", codes.PermissionDenied, "CREDENTIAL_MISMATCH"},
		{certified, bearer("guessed"), "", codes.Unauthenticated, "CREDENTIAL_UNKNOWN"},
		{stranger, nil, "", codes.Unauthenticated, "CREDENTIAL_REQUIRED"},
		{stranger, bearer(w.secret), "default system/3/0", 0, ""},
		{bare, nil, "", codes.Unauthenticated, "CREDENTIAL_REQUIRED"},
		{bare, bearer("builder-2"), "team builder-2/2/0", 0, ""},
	} {
		who, err := whoami(calling(t, call.headers...), call.conn)
		if call.reason != "" {
			expect(t, err, call.code, call.reason, "")
			continue
		}
		if err != nil || who != call.who {
			t.Errorf("%q: %q, want %q (%v)", call.headers, who, call.who, err)
		}
	}
}

func TestCertificate_OfAnUnclearAgentIsRefused(t *testing.T) {
	t.Parallel()
	c := newCA(t, clockwork.NewFakeClock())
	w := c.serve()
	for _, uris := range [][]string{
		{"brokerd:///sessions/team/agents/a", "brokerd:///sessions/team/agents/b"},
		{"brokerd:///sessions/team"},
		{"brokerd:///agents/a/sessions/team"},
		{"brokerd:///sessions/team/agents/"},
		{"brokerd:///sessions/team/agents/a/b"},
		{"brokerd:///sessions/team/agents/a%20b"},
		{"brokerd:///sessions/team/agents/..%2Fb"},
		{"brokerd:///sessions/team/agents/system"},
		{"brokerd:///sessions/team/agents/a?b=c"},
		{"brokerd://host/sessions/team/agents/a"},
		{"brokerd:sessions"},
	} {
		if who, err := whoami(calling(t), c.dial(w, c.naming(uris...))); status.Code(err) != codes.Unavailable {
			t.Errorf("%q: %q, %v", uris, who, err)
		}
	}
	escaped := "brokerd:///sessions/t%65am/agents/a%2Db"
	if who, err := whoami(calling(t), c.dial(w, c.naming(escaped))); err != nil || who != "team a-b/2/0" {
		t.Errorf("%s: %q, %v", escaped, who, err)
	}
}

func TestCertificate_ThatIsNotValidIsRefusedAndCounts(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	c := newCA(t, clock)
	n := noted{grants{}, make(chan netip.Addr, 100)}
	w := c.serve(func(o *rpc.Options) { o.Credentials = n })
	expired := c.agent("team", "early")
	server, err := tls.LoadX509KeyPair(filepath.Join(c.dir, "server.pem"), filepath.Join(c.dir, "server.key"))
	testkit.NoError(t, err)
	clock.Advance(certificateValidity)
	for want, own := range map[string]tls.Certificate{
		"expired certificate":           expired,
		"unknown certificate authority": newCA(t, clock).agent("team", "builder-1"),
		"bad certificate":               server, // it proves no client
	} {
		who, err := whoami(calling(t), c.dial(w, own))
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("%q, %v; want %s", who, err, want)
		}
		if client := <-n.clients; client != netip.MustParseAddr("127.0.0.1") {
			t.Errorf("%s counts for %v", want, client)
		}
	}
}

func TestCertificate_EndsTheCallsOfItsConnection(t *testing.T) {
	t.Parallel()
	for name, credential := range map[string]func() *identity.Grant{
		"alone":                          nil,
		"with a credential":              func() *identity.Grant { return &identity.Grant{} },
		"with a credential that can end": func() *identity.Grant { grant, _ := ending(identity.Agent); return grant },
	} {
		t.Run(name, func(t *testing.T) {
			clock := clockwork.NewFakeClock()
			c := newCA(t, clock)
			w := c.serve()
			var headers []string
			if credential != nil {
				grant := credential()
				grant.Access, grant.Session, grant.Agent = identity.Agent, "team", "builder-1"
				w.grants["own"] = grant
				headers = []string{"authorization", "Bearer own"}
			}
			began := make(chan struct{}, 1)
			w.features.get = func(ctx context.Context) error {
				began <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}
			conn := c.dial(w, c.agent("team", "builder-1"))
			inRecv, err := pb.NewMessageServiceClient(conn).Send(calling(t, headers...))
			testkit.NoError(t, err)
			testkit.NoError(t, inRecv.Send(&pb.SendRequest{}))
			if _, err := inRecv.Recv(); err != nil {
				t.Fatal(err)
			}
			unary := make(chan error, 1)
			go func() { _, err := whoami(calling(t, headers...), conn); unary <- err }()
			<-began
			clock.Advance(certificateValidity)
			_, err = inRecv.Recv()
			expect(t, err, codes.Unauthenticated, "CERTIFICATE_EXPIRED", "")
			expect(t, <-unary, codes.Unauthenticated, "CERTIFICATE_EXPIRED", "")
			w.features.get = nil // so that only the server can refuse the next call
			_, err = whoami(calling(t, headers...), conn)
			expect(t, err, codes.Unauthenticated, "CERTIFICATE_EXPIRED", "")
		})
	}
}

func TestCertificate_ACredentialThatEndsFirstEndsTheCalls(t *testing.T) {
	t.Parallel()
	c := newCA(t, clockwork.NewFakeClock())
	w := c.serve()
	grant, end := ending(identity.Agent)
	grant.Session, grant.Agent = "team", "builder-1"
	w.grants["own"] = grant
	stream, err := pb.NewMessageServiceClient(c.dial(w, c.agent("team", "builder-1"))).Send(calling(t, "authorization", "Bearer own"))
	testkit.NoError(t, err)
	testkit.NoError(t, stream.Send(&pb.SendRequest{}))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	end()
	_, err = stream.Recv()
	expect(t, err, codes.Unauthenticated, "CREDENTIAL_REVOKED", "")
}
