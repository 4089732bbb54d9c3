package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A limit on the size of files stands in for a full disk: every write beyond it fails.
func TestProgram_IsNotReadyWhileItCannotWrite(t *testing.T) {
	t.Parallel()
	p := launch(t, "--metrics", "127.0.0.1:0", "--sync", "normal")
	defer p.end(t)
	p.stderr.await(t, "serving metrics", 1)
	address := regexp.MustCompile(`serving metrics\s+\{"address": "([^"]+)"`).FindStringSubmatch(p.stderr.String())
	if address == nil {
		t.Fatalf("the log does not name the address: %s", p.stderr.String())
	}
	ready := func() (int, string) {
		t.Helper()
		out, err := http.Get("http://" + address[1] + "/readyz")
		apptest.NoError(t, err)
		defer func() { _ = out.Body.Close() }()
		text, err := io.ReadAll(out.Body)
		apptest.NoError(t, err)
		return out.StatusCode, string(text)
	}
	conn, err := grpc.NewClient("unix://"+p.dir+"/brokerd.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	apptest.NoError(t, err)
	defer func() { _ = conn.Close() }()
	change := func(size uint64) error {
		t.Helper()
		limit := unix.Rlimit{Cur: size, Max: unix.RLIM_INFINITY}
		apptest.NoError(t, unix.Prlimit(p.cmd.Process.Pid, unix.RLIMIT_FSIZE, &limit, nil))
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := pb.NewStateServiceClient(conn).PutState(ctx, &pb.PutStateRequest{Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "v"}}})
		return err
	}
	if code, text := ready(); code != http.StatusOK || text != "ready\n" {
		t.Errorf("at first: %d %q", code, text)
	}
	log, err := os.Stat(p.dir + "/brokerd.db-wal")
	apptest.NoError(t, err)
	if err := change(uint64(log.Size())); err == nil {
		t.Fatal("a change was accepted beyond the limit")
	}
	if code, text := ready(); code != http.StatusServiceUnavailable || text != "the disk of the broker fails\n" {
		t.Errorf("while nothing can be written: %d %q", code, text)
	}
	apptest.NoError(t, change(unix.RLIM_INFINITY))
	if code, text := ready(); code != http.StatusOK || text != "ready\n" {
		t.Errorf("afterwards: %d %q", code, text)
	}
}
