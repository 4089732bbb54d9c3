package rpc

import (
	"errors"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
)

// A Refusing answers every call over gRPC with an error, in place of a Server.
type Refusing struct{ grpc *grpc.Server }

// NewRefusing returns a server whose answers are what why returns. It ends a connection after about a second, so that the
// client connects again.
func NewRefusing(why func() error) *Refusing {
	refuse := func(_ any, stream grpc.ServerStream) error {
		err := why()
		stream.SetTrailer(metadata.Pairs(reasonTrailer, Reason(err)))
		return Error(err)
	}
	return &Refusing{grpc.NewServer(
		grpc.UnknownServiceHandler(refuse),
		grpc.MaxHeaderListSize(headersRead),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Second, MaxConnectionAgeGrace: time.Second}),
		grpc.WaitForHandlers(true),
	)}
}

// Serve answers the calls that come through the listener until Stop. The connections have completed the handshake of
// TLS.
func (r *Refusing) Serve(l net.Listener) error {
	if err := r.grpc.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
		return err
	}
	return nil
}

// Stop closes the listener and all connections.
func (r *Refusing) Stop() { r.grpc.Stop() }
