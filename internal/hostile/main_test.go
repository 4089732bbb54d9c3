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
	if err := d.Start(patient(t)); err != nil {
		t.Fatal(err)
	}
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
	out, err := s.root.admin.GetStatus(patient(s.t), &pb.GetStatusRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
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
	if err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// A client has the stubs of one connection.
type client struct {
	conn        *grpc.ClientConn
	admin       pb.AdminServiceClient
	agents      pb.AgentServiceClient
	artifacts   pb.ArtifactServiceClient
	credentials pb.CredentialServiceClient
	events      pb.EventServiceClient
	locks       pb.LockServiceClient
	messages    pb.MessageServiceClient
	sessions    pb.SessionServiceClient
	state       pb.StateServiceClient
	tokens      pb.TokenServiceClient
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
	return newClient(conn)
}

func newClient(conn *grpc.ClientConn) *client {
	return &client{
		conn: conn, admin: pb.NewAdminServiceClient(conn), agents: pb.NewAgentServiceClient(conn),
		artifacts: pb.NewArtifactServiceClient(conn), credentials: pb.NewCredentialServiceClient(conn),
		events: pb.NewEventServiceClient(conn), locks: pb.NewLockServiceClient(conn),
		messages: pb.NewMessageServiceClient(conn), sessions: pb.NewSessionServiceClient(conn),
		state: pb.NewStateServiceClient(conn), tokens: pb.NewTokenServiceClient(conn),
	}
}

// operator returns a client of the Unix socket that may do everything.
func (s *target) operator(session string) *client {
	s.t.Helper()
	return s.client(s.Address(), party{session: session})
}

// issue returns the id and the secret of a new credential.
func (s *target) issue(access pb.CredentialAccess, session, agent string) (id, secret string) {
	s.t.Helper()
	out, err := s.root.credentials.IssueCredential(patient(s.t), &pb.IssueCredentialRequest{
		Access: access, Session: session, Agent: agent,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out.Credential.Id, out.Secret
}

// agent registers an agent, and returns its client, which presents a credential on loopback.
func (s *target) agent(session, name string) *client {
	s.t.Helper()
	_, secret := s.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, session, name)
	c := s.tcpClient(party{secret: secret})
	_, err := c.agents.RegisterAgent(patient(s.t), &pb.RegisterAgentRequest{Lease: durationpb.New(week)})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// session creates a session.
func (s *target) session(name string, settings *pb.SessionSettings) {
	s.t.Helper()
	request := &pb.CreateSessionRequest{Name: name, Settings: settings}
	if _, err := s.root.sessions.CreateSession(patient(s.t), request); err != nil {
		s.t.Fatal(err)
	}
}

// fails leaves out the answer of a call.
func fails[A any](_ A, err error) error { return err }
