package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"brokerd/cmd/brokerctl/authority"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// certify returns the folder of a new authority with a certificate for this machine.
func certify(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	issueServer(t, dir, authority.Term{Validity: time.Hour})
	return dir
}

func issueServer(t *testing.T, dir string, term authority.Term) {
	t.Helper()
	a, _, err := authority.Open(dir, time.Now())
	if err == nil {
		_, err = a.Server([]string{"localhost", "127.0.0.1"}, term)
	}
	apptest.NoError(t, err)
}

// launchTLS starts a daemon that speaks TLS on a free port, and returns the port's address.
func launchTLS(t *testing.T, dir string) (*program, string) {
	t.Helper()
	p := launch(t, "--listen", "127.0.0.1:0", "--tls-cert", filepath.Join(dir, "server.pem"),
		"--tls-key", filepath.Join(dir, "server.key"), "--tls-client-ca", filepath.Join(dir, "ca.pem"))
	_, rest, found := strings.Cut(p.line, " tls://")
	if !found {
		t.Fatalf("%q names no address with TLS", p.line)
	}
	address, _, _ := strings.Cut(rest, ",")
	return p, address
}

// trust returns the settings of a client that trusts the authority in dir.
func trust(t *testing.T, dir string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	apptest.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}}
}

// health makes calls of the health service with the operator's credential.
func (p *program) health(t *testing.T, address string, with credentials.TransportCredentials) (grpc_health_v1.HealthClient, context.Context) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(with))
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	secret, err := os.ReadFile(filepath.Join(p.dir, "operator.credential"))
	apptest.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return grpc_health_v1.NewHealthClient(conn),
		metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(secret)))
}

// served returns the certificate that a new connection receives.
func served(t *testing.T, address string, config *tls.Config) *x509.Certificate {
	t.Helper()
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", address, config)
	apptest.NoError(t, err)
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0]
}

func TestTLS_OnlyTLS13IsSpoken(t *testing.T) {
	t.Parallel()
	dir := certify(t)
	p, address := launchTLS(t, dir)
	check := &grpc_health_v1.HealthCheckRequest{}

	client, ctx := p.health(t, address, credentials.NewTLS(trust(t, dir)))
	if _, err := client.Check(ctx, check); err != nil {
		t.Errorf("TLS 1.3: %v", err)
	}
	old := trust(t, dir)
	old.MaxVersion = tls.VersionTLS12
	client, ctx = p.health(t, address, credentials.NewTLS(old))
	if _, err := client.Check(ctx, check); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
	client, ctx = p.health(t, address, insecure.NewCredentials())
	if _, err := client.Check(ctx, check); status.Code(err) != codes.Unavailable {
		t.Errorf("without TLS: %v", err)
	}
	p.end(t)
}

func TestTLS_HalfOpenHandshakesBlockNoOtherClientAndEnd(t *testing.T) {
	t.Parallel()
	dir := certify(t)
	p, address := launchTLS(t, dir)
	var silent []net.Conn
	for range 50 {
		conn, err := net.Dial("tcp", address)
		apptest.NoError(t, err)
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte{0x16, 0x03, 0x01, 0x02, 0x00}); err != nil { // the head of a ClientHello
			t.Fatal(err)
		}
		silent = append(silent, conn)
	}
	client, ctx := p.health(t, address, credentials.NewTLS(trust(t, dir)))
	if _, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	for _, conn := range silent {
		apptest.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
		_, err := io.Copy(io.Discard, conn)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a half-open handshake has no deadline")
		}
	}
	p.end(t)
}

func TestTLS_CertificatesAreReadAgainWhileStreamsAreOpen(t *testing.T) {
	t.Parallel()
	dir := certify(t)
	p, address := launchTLS(t, dir)
	client, ctx := p.health(t, address, credentials.NewTLS(trust(t, dir)))
	stream, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(stream.Recv()))
	first := served(t, address, trust(t, dir))

	issueServer(t, dir, authority.Term{Validity: time.Hour, Replace: true})
	p.hangUp(t, "the certificates for TLS were read again", 1)
	second := served(t, address, trust(t, dir))
	if second.Equal(first) {
		t.Error("after SIGHUP, a new connection receives the previous certificate")
	}

	issueServer(t, dir, authority.Term{Validity: time.Hour, Replace: true})
	third := served(t, address, trust(t, dir))
	for timeout := time.Now().Add(patience); third.Equal(second); third = served(t, address, trust(t, dir)) {
		if time.Now().After(timeout) {
			t.Fatal("handshakes do not notice that the files have changed")
		}
	}

	apptest.NoError(t, os.WriteFile(filepath.Join(dir, "server.pem"), []byte("not a certificate"), 0o600))
	p.hangUp(t, "the previous ones stay in use", 1)
	if !served(t, address, trust(t, dir)).Equal(third) {
		t.Error("an unreadable certificate replaced the previous one")
	}
	if _, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("a call on the first connection: %v", err)
	}
	apptest.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	if out, err := stream.Recv(); err != nil || out.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the stream that was open: %v, %v; want the news of the stop", out, err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, p.stderr.String())
	}
}

func TestTLS_SettingsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	dir := certify(t)
	a, _, err := authority.Open(dir, time.Now())
	apptest.NoError(t, err)
	agent, err := a.Agent("default", "builder-1", authority.Term{Validity: time.Hour})
	apptest.NoError(t, err)
	cert, key := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--tls-cert", cert}, "needs both"},
		{[]string{"--tls-key", key}, "needs both"},
		{[]string{"--tls-client-ca", cert}, "needs both"},
		{[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", key}, "holds no certificate"},
		{[]string{"--tls-cert", cert, "--tls-key", filepath.Join(dir, "ca.key")}, "private key does not match"},
		{[]string{"--tls-cert", cert, "--tls-key", filepath.Join(dir, "none")}, "no such file"},
		{[]string{"--tls-cert", agent.File, "--tls-key", agent.Key}, "is not the certificate of a server"},
	} {
		cmd := command(t, append([]string{"--data", filepath.Join(t.TempDir(), "new"), "--listen", "127.0.0.1:0"}, c.args...)...)
		text, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 2 || !bytes.Contains(text, []byte(c.want)) {
			t.Errorf("%q: exit code %d, %s; want %q", c.args, code, text, c.want)
		}
	}
	// A client's variables have the same names and do not stop a daemon without TCP. A flag that has no effect does.
	cmd := command(t, "--data", t.TempDir(), "--tls-cert", cert)
	if text, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 || !bytes.Contains(text, []byte("without a TCP address")) {
		t.Errorf("exit code %d, %s", cmd.ProcessState.ExitCode(), text)
	}
	p := &program{cmd: command(t, "--data", filepath.Join(t.TempDir(), "d"), "--log-format", "console")}
	p.cmd.Env = append(p.cmd.Environ(), "BROKERD_TLS_CERT="+filepath.Join(dir, "none"))
	p.cmd.Stderr = &p.stderr
	p.start(t)
	p.end(t)
}

// agentOf returns the certificate of an agent of the session "default".
func agentOf(t *testing.T, dir, agent string, validity time.Duration) tls.Certificate {
	t.Helper()
	a, _, err := authority.Open(dir, time.Now())
	apptest.NoError(t, err)
	issued, err := a.Agent("default", agent, authority.Term{Validity: validity})
	apptest.NoError(t, err)
	pair, err := tls.LoadX509KeyPair(issued.File, issued.Key)
	apptest.NoError(t, err)
	return pair
}

func TestTLS_ClientCertificatesIdentifyAgents(t *testing.T) {
	t.Parallel()
	dir := certify(t)
	p, address := launchTLS(t, dir)
	secret, err := os.ReadFile(filepath.Join(p.dir, "operator.credential"))
	apptest.NoError(t, err)
	operator := "Bearer " + strings.TrimSpace(string(secret))
	own := agentOf(t, dir, "builder-1", time.Hour)
	for _, c := range []struct {
		name    string
		with    []tls.Certificate
		server  string // the name that the client expects
		headers []string
		code    codes.Code
		want    string
	}{
		{"alone", []tls.Certificate{own}, "", nil, codes.OK, ""},
		{"with the name of another agent", []tls.Certificate{own}, "", []string{"brokerd-agent", "builder-2"}, codes.PermissionDenied, "builder-1"},
		{"with another credential", []tls.Certificate{own}, "", []string{"authorization", operator}, codes.PermissionDenied, "present only one"},
		{"no certificate", nil, "", nil, codes.Unauthenticated, "needs a credential"},
		{"of another authority", []tls.Certificate{agentOf(t, t.TempDir(), "builder-1", time.Hour)}, "", nil, codes.Unavailable, "unknown certificate authority"},
		{"expired", []tls.Certificate{agentOf(t, dir, "early", -time.Second)}, "", nil, codes.Unavailable, "expired certificate"},
		{"for another server", []tls.Certificate{own}, "broker.example", nil, codes.Unavailable, "not broker.example"},
	} {
		config := trust(t, dir)
		config.ServerName = c.server
		// The client presents its certificate whatever authorities the server asks for.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &append(c.with, tls.Certificate{})[0], nil
		}
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		apptest.NoError(t, err)
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), c.headers...), patience)
		_, err = pb.NewAgentServiceClient(conn).RegisterAgent(ctx, &pb.RegisterAgentRequest{})
		if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %v, %q", c.name, err, c.code, c.want)
		}
		cancel()
		_ = conn.Close()
	}
	p.end(t)
}

func TestTLS_TheProtocolOfTheHandshakeChoosesHTTP(t *testing.T) {
	t.Parallel()
	dir := certify(t)
	p, address := launchTLS(t, dir)
	secret, err := os.ReadFile(filepath.Join(p.dir, "operator.credential"))
	apptest.NoError(t, err)
	for name, offered := range map[string][]string{
		"both": {"h2", "http/1.1"}, "HTTP/1.1": {"http/1.1"}, "none": nil,
	} {
		config := trust(t, dir)
		config.NextProtos = offered
		dial := func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&tls.Dialer{Config: config}).DialContext(ctx, network, address)
		}
		client := &http.Client{Timeout: patience, Transport: &http.Transport{DialTLSContext: dial}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/v1/status", nil)
		apptest.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(secret)))
		out, err := client.Do(r)
		if err != nil {
			t.Errorf("a client that offers %s: %v", name, err)
			continue
		}
		if out.StatusCode != http.StatusOK || out.ProtoMajor != 1 {
			t.Errorf("a client that offers %s: %s %s", name, out.Proto, out.Status)
		}
		_ = out.Body.Close()
		client.CloseIdleConnections()
	}
	client, ctx := p.health(t, address, credentials.NewTLS(trust(t, dir))) // offers h2
	if _, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("gRPC: %v", err)
	}
	p.end(t)
}
