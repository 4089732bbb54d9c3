package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

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
	return plainTCP
}

const plainTCP = "plain TCP"

// peers are the transport credentials of the server. They accept only one user on a Unix socket, and
// speak TLS on TCP if there are certificates. Every connection gets a link. Connections that do not
// speak HTTP/2 go to the listener web.
type peers struct {
	uid          int
	certificates *Certificates // nil: TCP is plain
	credentials  Credentials
	clock        clockwork.Clock
	log          *zap.Logger
	server       *Server
}

// ServerHandshake implements credentials.TransportCredentials. gRPC calls it in a goroutine per
// connection and has set the connection's deadline.
func (p peers) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	opened, web := raw.(*newConn), p.server.web
	bare := opened.Conn
	// A connection whose client sends nothing does not delay the stop of the server.
	served := context.AfterFunc(p.server.stopping, func() { _ = bare.SetDeadline(passed) })
	conn, info, http2, err := p.identify(bare)
	if !served() && err == nil {
		// The deadline may pass only after the handshake, and would then cut off a call under way.
		err = errors.New("the server stops")
	}
	switch {
	case err != nil:
		return nil, nil, err
	case http2 || web == nil:
		// The limit protects the processor, whatever the daemon's clock says.
		conn, err = pace(conn, clockwork.NewRealClock())
		return conn, info, err
	}
	if err := errors.Join(opened.release(), detectLoss(bare)); err != nil {
		return nil, nil, err
	}
	web.pass(&webConn{Conn: conn, info: info})
	return nil, nil, credentials.ErrConnDispatched
}

// identify returns the connection with what is known about its client, and whether the client speaks
// HTTP/2.
func (p peers) identify(conn net.Conn) (_ net.Conn, info connection, http2 bool, err error) {
	if info.link, err = newLink(conn); err != nil {
		return nil, info, false, err
	}
	socket, local := conn.(*net.UnixConn)
	switch {
	case local:
		err = p.checkUser(socket)
		info.SecurityLevel, info.local = credentials.PrivacyAndIntegrity, true
	case p.certificates != nil:
		return p.secure(conn, info)
	default:
		info.SecurityLevel = credentials.NoSecurity
	}
	if err == nil && p.server.web != nil {
		http2, err = speaksHTTP2(conn.(syscall.Conn)) // as newLink has found out
	}
	return conn, info, http2, err
}

// checkUser refuses a client of the Unix socket that runs as another user.
func (p peers) checkUser(socket *net.UnixConn) error {
	uid, err := peerUID(socket)
	if err != nil {
		return fmt.Errorf("ask who is at the other end of the socket: %w", err)
	}
	if uid != p.uid {
		return fmt.Errorf("user %d is refused at the socket of user %d", uid, p.uid)
	}
	return nil
}

// secure is the handshake of a connection over TCP. A certificate that is not valid counts as a
// failed attempt of the client's address.
func (p peers) secure(conn net.Conn, info connection) (net.Conn, connection, bool, error) {
	encrypted := tls.Server(conn, p.certificates.config())
	http2, err := handshake(encrypted, p.server.web != nil)
	if err != nil {
		p.log.Debug("a TLS handshake failed", zap.Stringer("peer", conn.RemoteAddr()), zap.Error(err))
		if errors.As(err, new(*tls.CertificateVerificationError)) {
			_ = p.credentials.Refuse(address(conn.RemoteAddr()), p.clock.Now(), err) // the client gets an alert of TLS
		}
		linger(conn)
		return nil, info, false, fmt.Errorf("TLS handshake: %w", err)
	}
	info.SecurityLevel = credentials.PrivacyAndIntegrity
	var stop func() bool
	if info.certificate, stop = newCertificate(encrypted.ConnectionState(), p.clock); info.certificate == nil {
		return encrypted, info, http2, nil
	}
	return certifiedConn{encrypted, stop}, info, http2, nil
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

// handshake completes a TLS handshake and reports whether the client speaks HTTP/2. A client that
// does not offer a protocol speaks HTTP/1.1.
func handshake(conn *tls.Conn, web bool) (bool, error) {
	if err := conn.Handshake(); err != nil {
		return false, err
	}
	if conn.ConnectionState().NegotiatedProtocol == http2 {
		return true, nil
	}
	if !web {
		return false, errors.New("the client does not offer the protocol " + http2)
	}
	return false, nil
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
func control(socket syscall.Conn, fn func(fd int) error) error {
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
