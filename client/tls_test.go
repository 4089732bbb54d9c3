package client_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"brokerd/client"
	"brokerd/cmd/brokerctl/authority"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// A ca is an authority with certificates for a server and for agents of the session "default".
type ca struct {
	*authority.Authority
	t   *testing.T
	dir string
}

func newCA(t *testing.T, server time.Duration) *ca {
	t.Helper()
	dir := t.TempDir()
	a, _, err := authority.Open(dir, time.Now())
	if err == nil {
		_, err = a.Server([]string{"127.0.0.1"}, authority.Term{Validity: server})
	}
	apptest.NoError(t, err)
	return &ca{a, t, dir}
}

func (c *ca) file(name string) string { return filepath.Join(c.dir, name) }

// agent returns the settings of a client with the certificate of an agent.
func (c *ca) agent(name string, validity time.Duration) client.TLS {
	c.t.Helper()
	issued, err := c.Agent("default", name, authority.Term{Validity: validity})
	apptest.NoError(c.t, err)
	return client.TLS{CA: c.file("ca.pem"), Cert: issued.File, Key: issued.Key}
}

// serve starts a broker that speaks TLS, and returns its HOST:PORT.
func (c *ca) serve() (b *apptest.Broker, where string) {
	c.t.Helper()
	b = apptest.Start(c.t, apptest.With(func(config *app.Config) {
		config.TLS = app.TLSFiles{Cert: c.file("server.pem"), Key: c.file("server.key"), ClientCA: c.file("ca.pem")}
	}))
	return b, strings.TrimPrefix(b.TCP(), "tls://")
}

func TestDial_SpeaksTLS(t *testing.T) {
	c := newCA(t, time.Hour)
	b, where := c.serve()
	trusting := client.WithTLS(client.TLS{CA: c.file("ca.pem")})
	for name, opts := range map[string][]client.Option{
		"tls://":          {client.WithAddress("tls://" + where), trusting, client.WithCredential(b.Credential()), client.WithAgent("a")},
		"HOST:PORT":       {client.WithAddress(where), trusting, client.WithCredential(b.Credential()), client.WithAgent("a")},
		"its certificate": {client.WithAddress(where), client.WithTLS(c.agent("a", time.Hour))},
	} {
		dialled, err := client.Dial(t.Context(), opts...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if out, err := dialled.Agents().RegisterAgent(t.Context(), &pb.RegisterAgentRequest{}); err != nil || out.GetAgent().GetName() != "a" {
			t.Errorf("%s: %v, %v", name, out, err)
		}
		dialled.Close()
	}
	own := c.agent("a", time.Hour)
	setEnvironment(t, map[string]string{"BROKERD_ADDR": where, "BROKERD_TLS_CA": own.CA, "BROKERD_TLS_CERT": own.Cert, "BROKERD_TLS_KEY": own.Key})
	dialled, err := client.FromEnvironment(t.Context())
	apptest.NoError(t, err)
	defer dialled.Close()
	if _, err := dialled.Agents().Heartbeat(t.Context(), &pb.HeartbeatRequest{}); err != nil {
		t.Errorf("from the environment: %v", err)
	}
}

func TestDial_NamesTheProblemWithTLS(t *testing.T) {
	t.Parallel()
	c, other, expired := newCA(t, time.Hour), newCA(t, time.Hour), newCA(t, -time.Second)
	_, where := c.serve()
	_, old := expired.serve()
	plain := apptest.Start(t).TCP()
	foreign := other.agent("a", time.Hour)
	foreign.CA = c.file("ca.pem")
	for _, failure := range []struct {
		address  string
		settings client.TLS
		want     string
	}{
		{"tls://" + where, client.TLS{}, "an authority that is not trusted: BROKERD_TLS_CA"},
		{"tls://" + where, client.TLS{CA: other.file("ca.pem")}, "an authority that is not trusted"},
		{"tls://" + old, client.TLS{CA: expired.file("ca.pem")}, "a certificate that is not valid now"},
		{"tls://" + where, client.TLS{CA: c.file("ca.pem"), ServerName: "broker.example"}, "for other names, not for broker.example: BROKERD_TLS_SERVER_NAME"},
		{"tls://" + where, foreign, "refuses the client's certificate, which BROKERD_TLS_CERT names: unknown certificate authority"},
		{"tls://" + where, c.agent("early", -time.Second), "refuses the client's certificate, which BROKERD_TLS_CERT names: expired certificate"},
		{where, client.TLS{}, "speaks TLS: write its address as tls://" + where},
		{"tls://" + plain, client.TLS{CA: c.file("ca.pem")}, "does not speak TLS"},
	} {
		_, err := client.Dial(t.Context(), client.WithAddress(failure.address), client.WithTLS(failure.settings))
		wantCode(t, err, codes.Unavailable)
		if !errors.As(err, new(*client.TLSError)) || !strings.Contains(err.Error(), failure.want) {
			t.Errorf("%s %v: %v; want %q", failure.address, failure.settings, err, failure.want)
		}
	}
	for _, mistake := range []struct {
		address  string
		settings client.TLS
		want     string
	}{
		{"192.0.2.1:7421", client.TLS{}, "needs TLS: write tls://192.0.2.1:7421"},
		{"tls://broker", client.TLS{}, "tls://host:port"},
		{where, client.TLS{CA: c.file("none.pem")}, "no such file"},
		{where, client.TLS{CA: c.file("ca.key")}, "holds no certificate"},
		{where, client.TLS{CA: c.file("ca.pem"), Cert: foreign.Cert}, "give both files or neither"},
	} {
		_, err := client.Dial(t.Context(), client.WithAddress(mistake.address), client.WithTLS(mistake.settings))
		if !errors.As(err, new(*client.AddressError)) || !strings.Contains(err.Error(), mistake.want) {
			t.Errorf("%s %v: %v; want %q", mistake.address, mistake.settings, err, mistake.want)
		}
	}
}
