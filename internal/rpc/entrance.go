package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"go.uber.org/zap"
	"google.golang.org/grpc/credentials"
)

// mostAfterAlert is how many bytes linger reads from a client.
const mostAfterAlert = 64 << 10

// An Entrance finds out who connects. It accepts only one user on a Unix socket, and speaks TLS on TCP if there are
// certificates.
type Entrance struct {
	UID          int
	Certificates *Certificates // nil: TCP is plain
	Log          *zap.Logger
}

// Facts are what is known about the client of a connection before its first call.
type Facts struct {
	Local bool // it connects through a Unix socket, as the daemon's own user
	TLS   bool
	HTTP2 bool // it speaks HTTP/2, and so gRPC; else HTTP/1.1
	// Certificate is the client's own, if it has presented one that the authorities of the daemon have signed.
	Certificate *x509.Certificate
	Via         *Via // nil unless another replica forwards the connection
}

// A Via is the replica through which a client has connected.
type Via struct {
	Replica   string   // its address for other replicas
	Dir       string   // its data folder
	Addresses []string // at which clients reach it
}

func (f Facts) security() credentials.SecurityLevel {
	if f.Local || f.TLS {
		return credentials.PrivacyAndIntegrity
	}
	return credentials.NoSecurity
}

// Receive returns a connection with the facts about its client, after the handshake of TLS. What the connection reads
// begins with the first byte of HTTP. It waits for that byte up to the deadline of the connection.
func (e Entrance) Receive(conn net.Conn) (net.Conn, Facts, error) {
	return e.receive(conn, true, func(net.Addr, error) {})
}

// receive is Receive. web says that a client may speak HTTP/1.1. refused is called for a certificate that is not valid.
func (e Entrance) receive(conn net.Conn, web bool, refused func(client net.Addr, cause error)) (net.Conn, Facts, error) {
	var facts Facts
	var err error
	socket, local := conn.(*net.UnixConn)
	switch {
	case local:
		facts.Local, err = true, e.checkUser(socket)
	case e.Certificates != nil:
		return e.secure(conn, web, refused)
	}
	if err == nil && web {
		facts.HTTP2, err = speaksHTTP2(conn.(syscall.Conn)) // as newLink has found out
	}
	return conn, facts, err
}

// checkUser refuses a client of the Unix socket that runs as another user.
func (e Entrance) checkUser(socket *net.UnixConn) error {
	uid, err := peerUID(socket)
	if err != nil {
		return fmt.Errorf("ask who is at the other end of the socket: %w", err)
	}
	if uid != e.UID {
		return fmt.Errorf("user %d is refused at the socket of user %d", uid, e.UID)
	}
	return nil
}

// secure is the handshake of a connection over TCP.
func (e Entrance) secure(conn net.Conn, web bool, refused func(net.Addr, error)) (net.Conn, Facts, error) {
	encrypted := tls.Server(conn, e.Certificates.config())
	http2, err := handshake(encrypted, web)
	if err != nil {
		e.Log.Debug("a TLS handshake failed", zap.Stringer("peer", conn.RemoteAddr()), zap.Error(err))
		if errors.As(err, new(*tls.CertificateVerificationError)) {
			refused(conn.RemoteAddr(), err)
		}
		linger(conn)
		return nil, Facts{}, fmt.Errorf("TLS handshake: %w", err)
	}
	facts := Facts{TLS: true, HTTP2: http2}
	if state := encrypted.ConnectionState(); len(state.VerifiedChains) > 0 {
		facts.Certificate = state.PeerCertificates[0]
	}
	return encrypted, facts, nil
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

// Forwarded returns a connection that another replica forwards, for a listener of Serve. The replica has found out the
// facts about the client, and has the connection closed when that of the client is. client and server are the two ends
// of the client's connection.
func Forwarded(conn *tls.Conn, facts Facts, client, server net.Addr) net.Conn {
	return &forwardedConn{conn, facts, client, server}
}

type forwardedConn struct {
	*tls.Conn
	facts          Facts
	client, server net.Addr
}

// RemoteAddr implements net.Conn.
func (c *forwardedConn) RemoteAddr() net.Addr { return c.client }

// LocalAddr implements net.Conn.
func (c *forwardedConn) LocalAddr() net.Addr { return c.server }

// SyscallConn implements syscall.Conn. It is that of the replica's connection.
func (c *forwardedConn) SyscallConn() (syscall.RawConn, error) {
	return c.NetConn().(syscall.Conn).SyscallConn() // a *net.TCPConn
}
