package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// probeTimeout bounds the search for the reason why a connection has failed.
const probeTimeout = 10 * time.Second

// TLS are the files, in PEM, and the name with which a client speaks TLS 1.3. The zero value means the
// authorities of the system and no certificate of the client. Each new connection reads the files
// again.
type TLS struct {
	CA         string // authorities that the broker's certificate may be from
	Cert, Key  string // the certificate that identifies the agent, and its key
	ServerName string // the name in the broker's certificate; empty: the host of the address
}

// A TLSError is the cause of an UnreachableError if the client and the broker cannot agree on TLS.
type TLSError struct {
	Problem string
	Err     error
}

// Error returns the problem and what to do about it.
func (e *TLSError) Error() string { return e.Problem }

// Unwrap returns the error of the handshake.
func (e *TLSError) Unwrap() error { return e.Err }

// config reads the files. host is the host of the address.
func (t TLS) config(host string) (*tls.Config, error) {
	config := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}
	if config.ServerName == "" {
		config.ServerName = host
	}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("read the authorities for TLS: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read the authorities for TLS: %s holds no certificate", t.CA)
		}
	}
	if t.Cert == "" && t.Key == "" {
		return config, nil
	}
	if t.Cert == "" || t.Key == "" {
		return nil, errors.New("a certificate for TLS needs its key: give both files or neither")
	}
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("read the client's certificate for TLS: %w", err)
	}
	// The client presents its certificate also if the broker trusts other authorities, so that the
	// broker refuses it with a reason.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	return config, nil
}

// transport are the transport credentials of a link, which speaks TLS to the targets that are secure.
type transport struct {
	link     *link
	settings TLS
}

// ClientHandshake implements credentials.TransportCredentials. The link notes why a handshake fails.
func (e transport) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !e.link.targets[authority].secure {
		return insecure.NewCredentials().ClientHandshake(ctx, authority, raw)
	}
	conn, err := e.handshake(ctx, authority, raw)
	if err != nil {
		err = e.link.explainTLS(err)
		e.link.dialFault.Store(&err)
		return nil, nil, err
	}
	return encrypted{conn, e.link}, credentials.TLSInfo{
		State:          conn.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

func (e transport) handshake(ctx context.Context, authority string, raw net.Conn) (*tls.Conn, error) {
	host, _, _ := net.SplitHostPort(authority) // it has been parsed
	config, err := e.settings.config(host)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	return conn, conn.HandshakeContext(ctx)
}

// ServerHandshake implements credentials.TransportCredentials. There is no server here.
func (e transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a client's")
}

// Info implements credentials.TransportCredentials.
func (e transport) Info() credentials.ProtocolInfo {
	for _, to := range e.link.targets {
		if to.secure {
			return credentials.ProtocolInfo{SecurityProtocol: "tls"}
		}
	}
	return insecure.NewCredentials().Info()
}

// Clone implements credentials.TransportCredentials.
func (e transport) Clone() credentials.TransportCredentials { return e }

// OverrideServerName implements credentials.TransportCredentials; the settings have the name.
func (e transport) OverrideServerName(string) error { return nil }

// encrypted is a connection on which the broker refuses the client's certificate after the client's
// part of the handshake.
type encrypted struct {
	*tls.Conn
	link *link
}

// Read implements net.Conn.
func (c encrypted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	var alert *net.OpError
	if errors.As(err, &alert) && alert.Op == remoteAlert {
		err = c.link.explainTLS(err)
		c.link.dialFault.Store(&err)
	}
	return n, err
}

// remoteAlert is the operation of an error of crypto/tls that the other end reports.
const remoteAlert = "remote error"

// explainTLS returns a TLSError for the failure of a handshake, other errors as they are.
func (l *link) explainTLS(err error) error {
	var (
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		name    x509.HostnameError
		plain   tls.RecordHeaderError
		alert   *net.OpError
	)
	problem := ""
	switch {
	case errors.As(err, &plain):
		problem = "does not speak TLS; an address without tls:// and without settings for TLS reaches it, on this machine alone"
	case errors.As(err, &unknown):
		problem = "has a certificate of an authority that is not trusted: BROKERD_TLS_CA names the file with its authority"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		problem = fmt.Sprintf("has a certificate that is not valid now, but from %s to %s: renew it, or correct the clock",
			invalid.Cert.NotBefore.Format(time.RFC3339), invalid.Cert.NotAfter.Format(time.RFC3339))
	case errors.As(err, &name):
		problem = fmt.Sprintf("has a certificate for other names, not for %s: BROKERD_TLS_SERVER_NAME can give the name (%v)", name.Host, name)
	case errors.As(err, &alert) && alert.Op == remoteAlert:
		reason := strings.TrimPrefix(alert.Err.Error(), "tls: ")
		problem = "refuses the client's side of TLS: " + reason
		if strings.Contains(reason, "certificate") {
			problem = "refuses the client's certificate, which BROKERD_TLS_CERT names: " + reason
		}
	default:
		return err
	}
	return &TLSError{problem, err}
}

// probe returns a TLSError if the broker speaks TLS at an address where a client without TLS got no answer, ErrNoBroker if
// the first bytes of what listens there are no HTTP/2, else nil.
func (l *link) probe(ctx context.Context, where string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{
		NextProtos:         []string{"h2"},
		InsecureSkipVerify: true, //nolint:gosec // the probe sends nothing but the handshake
	}}
	conn, err := d.DialContext(ctx, "tcp", where)
	var plain tls.RecordHeaderError
	switch {
	case err == nil:
		_ = conn.Close()
		return &TLSError{Problem: "speaks TLS: write its address as tls://" + where}
	case errors.As(err, &plain) && plain.RecordHeader[3] != settingsFrame:
		return ErrNoBroker
	}
	return nil
}

// settingsFrame is the type of the frame with which a server begins HTTP/2 (RFC 9113, sections 3.4 and 6.5). The type is
// the fourth byte of a frame.
const settingsFrame = 4
