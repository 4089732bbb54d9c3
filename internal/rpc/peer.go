package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
)

// connection is what is known of a connection before its first call.
type connection struct {
	credentials.CommonAuthInfo
	local bool // through a Unix socket, by the daemon's own user
	link  *link
}

// AuthType implements credentials.AuthInfo.
func (c connection) AuthType() string {
	if c.local {
		return "local peer"
	}
	return "plain TCP"
}

// peers are the transport credentials of the server: they let only one user through a Unix socket,
// and leave TCP to the credential of each call. Every connection gets a link.
type peers struct{ uid int }

// ServerHandshake implements credentials.TransportCredentials.
func (p peers) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	l, err := newLink(conn)
	if err != nil {
		return nil, nil, err
	}
	socket, ok := conn.(*net.UnixConn)
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
