package rpc_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"brokerd/internal/rpc"
	"brokerd/internal/testkit"
)

// heap returns the bytes that are in use, without those of pools that nobody has touched of late.
func heap() int64 {
	var m runtime.MemStats
	for range 3 { // what was pooled goes with the second collection
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// greet opens a connection as an HTTP/2 client does, and waits until the server has read all that will come.
func greet(t *testing.T, network, address string) {
	t.Helper()
	conn, err := net.Dial(network, address)
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testkit.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	const settings, acknowledged = 4, 1
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 9); ; {
		if _, err := io.ReadFull(conn, frame); err != nil {
			t.Fatal(err)
		}
		length := binary.BigEndian.Uint32(append([]byte{0}, frame[:3]...))
		if _, err := io.CopyN(io.Discard, conn, int64(length)); err != nil {
			t.Fatal(err)
		}
		if frame[3] == settings && frame[4] == acknowledged {
			return
		}
	}
}

// gRPC gives buffers back while a connection is silent, if the connection has the method ReadOnReady.
// Not parallel: the heap is that of the whole process.
func TestServer_AnIdleConnectionHoldsNoBuffers(t *testing.T) {
	const connections, most = 200, 16 << 10 // a read buffer alone has 32 KiB
	w := serve(t)
	for network, address := range map[string]string{"unix": strings.TrimPrefix(w.socket, "unix://"), "tcp": w.tcp} {
		greet(t, network, address) // what is made once
		before := heap()
		for range connections {
			greet(t, network, address)
		}
		each := (heap() - before) / connections
		t.Logf("%s: %d bytes a connection", network, each)
		if each > most {
			t.Errorf("%s: an idle connection holds %d bytes, want at most %d", network, each, most)
		}
	}
}

// The accounts of agents are not told when a connection is closed: they find out.
// Not parallel: the heap is that of the whole process.
func TestQuota_WhatIsClosedIsForgotten(t *testing.T) {
	const agents, most = 1000, 512
	w := serve(t, func(o *rpc.Options) { o.Presence = nil })
	ctx := calling(t)
	come := func(i int) {
		conn, err := grpc.NewClient(w.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		testkit.NoError(t, err)
		if _, err := whoami(metadata.AppendToOutgoingContext(ctx, "brokerd-agent", fmt.Sprintf("a%d", i)), conn); err != nil {
			t.Fatal(err)
		}
		testkit.NoError(t, conn.Close())
	}
	for i := range agents / 10 {
		come(-1 - i)
	}
	before := heap()
	for i := range agents {
		come(i)
	}
	each := (heap() - before) / agents
	t.Logf("%d bytes an agent", each)
	if each > most {
		t.Errorf("an agent that is gone holds %d bytes, want at most %d", each, most)
	}
}
