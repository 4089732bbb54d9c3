package hostile_test

import (
	"context"
	"crypto/tls"
	"regexp"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what should come at once.
const patience = 5 * time.Minute

// patient returns a context for what should come at once.
func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// A target is a brokerd process that listens on its Unix socket and on loopback. At the end of the
// test it must stop without an error, and `brokerd check` must find nothing.
type target struct {
	*processtest.Daemon
	t   testing.TB
	tcp string      // HOST:PORT
	tls *tls.Config // of clients that use tcp; nil: without TLS

	root *client // an operator on the Unix socket, in the session default
}

// launch starts a daemon with further arguments.
func launch(t testing.TB, clients *tls.Config, args ...string) *target {
	t.Helper()
	d := processtest.New(t, processtest.Build(t))
	d.Args = append([]string{"--listen", "127.0.0.1:0"}, args...)
	s := &target{Daemon: d, t: t, tls: clients}
	apptest.NoError(t, d.Start(patient(t)))
	s.meet()
	if clients != nil {
		s.tcp = s.tcp[len("tls://"):]
	}
	t.Cleanup(s.end)
	return s
}

// meet connects to the daemon, and asks where it listens.
func (s *target) meet() {
	s.t.Helper()
	s.root = s.operator("default")
	listen := s.status().Listen
	s.tcp = listen[len(listen)-1]
}

// defect matches the lines of a log that report a defect of the daemon.
var defect = regexp.MustCompile(`(?i)panic|goroutine \d+ \[|"code": "(Internal|Unknown)"`)

// end stops the daemon, and checks its log and its database.
func (s *target) end() {
	s.t.Helper()
	if err := s.Terminate(); err != nil {
		s.t.Errorf("the daemon ended with %v: %s", err, s.Stderr())
	}
	if line := defect.FindString(s.Stderr()); line != "" {
		s.t.Errorf("the log has %q: %s", line, s.Stderr())
	}
	if err := s.Check(patient(s.t)); err != nil {
		s.t.Error(err)
	}
}

// status returns what the daemon says about itself.
func (s *target) status() *pb.GetStatusResponse {
	s.t.Helper()
	out, err := s.root.GetStatus(patient(s.t), &pb.GetStatusRequest{})
	apptest.NoError(s.t, err)
	return out
}

// A party is the metadata of every call of a client. It implements credentials.PerRPCCredentials.
type party struct{ secret, session, agent string }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (p party) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	headers := map[string]string{}
	for key, value := range map[string]string{"brokerd-session": p.session, "brokerd-agent": p.agent} {
		if value != "" {
			headers[key] = value
		}
	}
	if p.secret != "" {
		headers["authorization"] = "Bearer " + p.secret
	}
	return headers, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (party) RequireTransportSecurity() bool { return false }

// dial returns a connection to an address of the daemon; the caller closes it.
func (s *target) dial(address string, p party) *grpc.ClientConn {
	s.t.Helper()
	with := insecure.NewCredentials()
	if s.tls != nil && address == s.tcp {
		with = credentials.NewTLS(s.tls)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(with), grpc.WithPerRPCCredentials(p),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	apptest.NoError(s.t, err)
	return conn
}

// A client is a caller over one connection.
type client struct {
	conn *grpc.ClientConn
	*apptest.Actor
}

// tcpClient returns a client on loopback, until the end of the test.
func (s *target) tcpClient(p party) *client {
	s.t.Helper()
	return s.client(s.tcp, p)
}

func (s *target) client(address string, p party) *client {
	s.t.Helper()
	conn := s.dial(address, p)
	s.t.Cleanup(func() { conn.Close() })
	return newClient(s.t, conn)
}

func newClient(t testing.TB, conn *grpc.ClientConn) *client {
	t.Helper()
	return &client{conn, apptest.NewActor(t, conn, "")}
}

// operator returns a client of the Unix socket that may do everything.
func (s *target) operator(session string) *client {
	s.t.Helper()
	return s.client(s.Address(), party{session: session})
}

// issue returns the id and the secret of a new credential.
func (s *target) issue(access pb.CredentialAccess, session, agent string) (id, secret string) {
	s.t.Helper()
	out, err := s.root.IssueCredential(patient(s.t), &pb.IssueCredentialRequest{
		Access: access, Session: session, Agent: agent,
	})
	apptest.NoError(s.t, err)
	return out.Credential.Id, out.Secret
}

// agent registers an agent, and returns its client, which presents a credential on loopback.
func (s *target) agent(session, name string) *client {
	s.t.Helper()
	_, secret := s.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, session, name)
	c := s.tcpClient(party{secret: secret})
	_, err := c.RegisterAgent(patient(s.t), &pb.RegisterAgentRequest{Lease: durationpb.New(week)})
	apptest.NoError(s.t, err)
	return c
}

// session creates a session.
func (s *target) session(name string, settings *pb.SessionSettings) {
	s.t.Helper()
	request := &pb.CreateSessionRequest{Name: name, Settings: settings}
	apptest.NoError(s.t, apptest.Err(s.root.CreateSession(patient(s.t), request)))
}
