package rpc

import (
	"context"
	"errors"
	"net"
	"syscall"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc/credentials"
)

// A connection has the facts about a connection that are known before its first call.
type connection struct {
	credentials.CommonAuthInfo
	local       bool // through a Unix socket, by the daemon's own user
	link        *link
	via         *Via         // nil = the client has connected to this process
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
	Entrance
	credentials Credentials
	clock       clockwork.Clock
	server      *Server
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
	if err := errors.Join(opened.release(), DetectLoss(bare)); err != nil {
		return nil, nil, err
	}
	web.Pass(&webConn{Conn: conn, info: info})
	return nil, nil, credentials.ErrConnDispatched
}

// identify returns the connection with what is known about its client, and whether the client speaks HTTP/2. A
// connection that another replica has forwarded comes with these facts.
func (p peers) identify(conn net.Conn) (_ net.Conn, info connection, http2 bool, err error) {
	if info.link, err = newLink(conn); err != nil {
		return nil, info, false, err
	}
	forwarded, ok := conn.(*forwardedConn)
	var facts Facts
	if ok {
		facts = forwarded.facts
	} else if conn, facts, err = p.receive(conn, p.server.web != nil, p.refuse); err != nil {
		return nil, info, false, err
	}
	info.local, info.SecurityLevel, info.via = facts.Local, facts.security(), facts.Via
	if facts.Certificate == nil {
		return conn, info, facts.HTTP2, nil
	}
	var stop func() bool
	if info.certificate, stop = newCertificate(facts.Certificate, p.clock); info.certificate == nil {
		return conn, info, facts.HTTP2, nil
	}
	return certifiedConn{conn.(halfCloser), stop}, info, facts.HTTP2, nil
}

// refuse counts a certificate that is not valid as a failed attempt of the client's address.
func (p peers) refuse(client net.Addr, cause error) {
	_ = p.credentials.Refuse(address(client), p.clock.Now(), cause) // the client gets an alert of TLS
}

// A halfCloser is a connection with two halves.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// A certifiedConn is a connection with a certificate, whose timer ends with it.
type certifiedConn struct {
	halfCloser
	stop func() bool
}

// Close implements net.Conn.
func (c certifiedConn) Close() error {
	c.stop()
	return c.halfCloser.Close()
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
