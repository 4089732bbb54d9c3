package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"
)

// mostAfterAlert is how many bytes linger reads from a client.
const mostAfterAlert = 64 << 10

// A connection has the facts about a connection that are known before its first call.
type connection struct {
	credentials.CommonAuthInfo
	local       bool // through a Unix socket, by the daemon's own user
	link        *link
	certificate *certificate // nil without one that identifies an agent
}

// AuthType implements credentials.AuthInfo.
func (c connection) AuthType() string {
	switch {
	case c.local:
		return "local peer"
	case c.SecurityLevel == credentials.PrivacyAndIntegrity:
		return "TLS"
	}
	return "plain TCP"
}

// peers are the transport credentials of the server. They accept only one user on a Unix socket, and
// speak TLS on TCP if there are certificates. Every connection gets a link.
type peers struct {
	uid          int
	certificates *Certificates // nil: TCP is plain
	credentials  Credentials
	clock        clockwork.Clock
	log          *zap.Logger
}

// ServerHandshake implements credentials.TransportCredentials. gRPC calls it in a goroutine per
// connection and has set the connection's deadline.
func (p peers) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.identify(conn)
	if err != nil {
		return nil, nil, err
	}
	conn, err = pace(conn, clockwork.NewRealClock()) // the limit protects the processor, whatever the daemon's clock says
	return conn, info, err
}

// identify identifies the other end of a connection, and returns the connection to read from.
func (p peers) identify(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	l, err := newLink(conn)
	if err != nil {
		return nil, nil, err
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok && p.certificates != nil {
		return p.secure(conn, l)
	}
	if !ok {
		return conn, connection{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, link: l}, nil
	}
	uid, err := peerUID(socket)
	if err != nil {
		return nil, nil, fmt.Errorf("ask who is at the other end of the socket: %w", err)
	}
	if uid != p.uid {
		return nil, nil, fmt.Errorf("user %d is refused at the socket of user %d", uid, p.uid)
	}
	return conn, connection{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		local:          true,
		link:           l,
	}, nil
}

// secure is the handshake of a connection over TCP. A certificate that is not valid counts as a
// failed attempt of the client's address.
func (p peers) secure(conn net.Conn, l *link) (net.Conn, credentials.AuthInfo, error) {
	encrypted := tls.Server(conn, p.certificates.config())
	if err := handshake(encrypted); err != nil {
		p.log.Debug("a TLS handshake failed", zap.Stringer("peer", conn.RemoteAddr()), zap.Error(err))
		if errors.As(err, new(*tls.CertificateVerificationError)) {
			_ = p.credentials.Refuse(address(conn.RemoteAddr()), p.clock.Now(), err) // the client gets an alert of TLS
		}
		linger(conn)
		return nil, nil, fmt.Errorf("TLS handshake: %w", err)
	}
	info := connection{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, link: l}
	var stop func() bool
	if info.certificate, stop = newCertificate(encrypted.ConnectionState(), p.clock); info.certificate == nil {
		return encrypted, info, nil
	}
	return certifiedConn{encrypted, stop}, info, nil
}

// linger waits until the client closes a connection whose handshake has failed, for as long as the
// deadline of the handshake permits. Closing the connection before the client has sent all of its
// first bytes could take the alert from it, which has the reason of the failure.
func linger(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok || tcp.CloseWrite() != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, conn, mostAfterAlert)
}

// A certifiedConn is a connection with a certificate, whose timer ends with it.
type certifiedConn struct {
	*tls.Conn
	stop func() bool
}

// Close implements net.Conn.
func (c certifiedConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// handshake completes a TLS handshake, with HTTP/2 as the protocol.
func handshake(conn *tls.Conn) error {
	if err := conn.Handshake(); err != nil {
		return err
	}
	if conn.ConnectionState().NegotiatedProtocol == "" {
		return errors.New("the client does not offer the protocol " + http2)
	}
	return nil
}

// ClientHandshake implements credentials.TransportCredentials. There is no client here.
func (p peers) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are a server's")
}

// Info implements credentials.TransportCredentials.
func (p peers) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "brokerd"}
}

// Clone implements credentials.TransportCredentials.
func (p peers) Clone() credentials.TransportCredentials { return p }

// OverrideServerName implements credentials.TransportCredentials; there is no name to override.
func (p peers) OverrideServerName(string) error { return nil }

// control runs fn on the socket's file descriptor.
func control(socket *net.UnixConn, fn func(fd int) error) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return err
	}
	return inner
}
