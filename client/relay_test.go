package client_test

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// relay passes calls on to a daemon as they are, and holds some back.
type relay struct {
	address string
	holds   map[string]bool // by method
	free    chan struct{}   // closed when they may go on
}

// newRelay puts a relay before a daemon.
func newRelay(t *testing.T, d *daemon, holds ...string) *relay {
	t.Helper()
	path := filepath.Join(d.dir, "relay")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(d.app.Addresses()[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{address: "unix://" + path, holds: map[string]bool{}, free: make(chan struct{})}
	for _, method := range holds {
		r.holds[method] = true
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(asIs{}), grpc.UnknownServiceHandler(func(_ any, in grpc.ServerStream) error { return r.pass(conn, in) }))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	})
	return r
}

// pass passes one call on.
func (r *relay) pass(conn *grpc.ClientConn, in grpc.ServerStream) error {
	ctx := in.Context()
	method, _ := grpc.Method(ctx)
	if r.holds[method] {
		select {
		case <-r.free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	out, err := conn.NewStream(metadata.NewOutgoingContext(ctx, md), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodecV2(asIs{}))
	if err != nil {
		return err
	}
	go func() { // until the call ends
		_ = move(in, out)
		_ = out.CloseSend()
	}()
	if err := move(out, in); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// move moves messages until there are no more.
func move(from interface{ RecvMsg(any) error }, to interface{ SendMsg(any) error }) error {
	for {
		var message mem.BufferSlice
		if err := from.RecvMsg(&message); err != nil {
			return err
		}
		if err := to.SendMsg(&message); err != nil {
			return err
		}
	}
}

// asIs leaves messages in the form in which they come.
type asIs struct{}

func (asIs) Name() string { return "proto" }

func (asIs) Marshal(v any) (mem.BufferSlice, error) {
	b := *v.(*mem.BufferSlice)
	b.Ref()
	return b, nil
}

func (asIs) Unmarshal(data mem.BufferSlice, v any) error {
	data.Ref()
	*v.(*mem.BufferSlice) = data
	return nil
}
