package replica_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"brokerd/internal/apptest"
	"brokerd/internal/replica"
	"brokerd/internal/rpc"
	"brokerd/internal/store/postgres"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A roster is a list of replicas in memory.
type roster struct {
	mu    sync.Mutex
	list  []postgres.Replica
	fails int // so many attempts to sign, as before the tables are made
}

func (r *roster) change(fn func(list []postgres.Replica) []postgres.Replica) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = fn(slices.Clone(r.list))
	return nil
}

func (r *roster) Sign(_ context.Context, me postgres.Replica) error {
	r.mu.Lock()
	r.fails--
	failed := r.fails >= 0
	r.mu.Unlock()
	if failed {
		return errors.New("there is no table")
	}
	return r.change(func(list []postgres.Replica) []postgres.Replica {
		if slices.ContainsFunc(list, func(one postgres.Replica) bool { return one.Address == me.Address }) {
			return list
		}
		return append(list, me)
	})
}

func (r *roster) Lead(_ context.Context, me postgres.Replica, _ int64) (bool, error) {
	return true, r.change(func(list []postgres.Replica) []postgres.Replica {
		for i := range list {
			list[i].Leading = list[i].Address == me.Address
		}
		return list
	})
}

func (r *roster) Leave(_ context.Context, me postgres.Replica) error {
	return r.change(func(list []postgres.Replica) []postgres.Replica {
		return slices.DeleteFunc(list, func(one postgres.Replica) bool { return one.Address == me.Address })
	})
}

func (r *roster) Replicas(context.Context) ([]postgres.Replica, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list, nil
}

func (r *roster) EndSilent(context.Context) (bool, error) { return false, nil }

// join starts a replica with a Unix socket for clients, and returns the path of the socket.
func join(t *testing.T, list *roster, patience time.Duration) (r *replica.Replica, socket string) {
	t.Helper()
	r, err := replica.New(replica.Options{
		Address: "127.0.0.1:0", Operator: sha256.Sum256(nil), Roster: list, Patience: patience, Log: zap.NewNop(),
		Entrance: rpc.Entrance{UID: os.Getuid(), Log: zap.NewNop()},
	})
	apptest.NoError(t, err)
	t.Cleanup(func() { apptest.NoError(t, r.Close(context.Background())) })
	dir, err := os.MkdirTemp("", "replica")
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	apptest.NoError(t, err)
	r.Start()
	r.Serve(l)
	return r, socket
}

func call(t *testing.T, socket string) error {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	apptest.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	return err
}

func TestReplica_WithoutALeaderEveryCallIsToldSo(t *testing.T) {
	t.Parallel()
	r, socket := join(t, &roster{}, time.Millisecond)
	err := call(t, socket)
	if status.Code(err) != codes.Unavailable || testkit.Reason(err) != "NO_LEADER" || !strings.Contains(err.Error(), "no replica leads") {
		t.Error(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	answer, err := client.Get("http://broker/v1/status")
	apptest.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	apptest.NoError(t, err)
	if answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "NO_LEADER") {
		t.Errorf("%s: %s", answer.Status, text)
	}
	if err := r.Ready(t.Context()); err == nil {
		t.Error("it is ready without a leader")
	}
}

// lead has a replica lead with a server that has the health service alone.
func lead(t *testing.T, r *replica.Replica) *rpc.Passage {
	t.Helper()
	passage := rpc.NewPassage()
	server := rpc.NewServer(rpc.Options{UID: os.Getuid(), Clock: clockwork.NewRealClock(), Log: zap.NewNop()})
	done := make(chan error, 1)
	go func() { done <- server.Serve(passage) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		server.Stop(ctx)
		apptest.NoError(t, <-done)
	})
	_, err := r.Lead(t.Context(), passage, 1)
	apptest.NoError(t, err)
	return passage
}

func TestReplica_ACallThatWaitsForALeaderIsAnsweredByIt(t *testing.T) {
	t.Parallel()
	list := &roster{fails: 3}
	first, _ := join(t, list, apptest.Patience)
	second, socket := join(t, list, apptest.Patience)
	answered := make(chan error, 1)
	go func() { answered <- call(t, socket) }()
	for { // until it may sign
		if all, _ := list.Replicas(t.Context()); len(all) == 2 {
			break
		}
		runtime.Gosched()
	}
	lead(t, first)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	apptest.NoError(t, second.Ready(t.Context()))
	if n := second.Standing().Forwarded; n != 1 {
		t.Errorf("%d connections were forwarded", n)
	}
}

// A process that reaches the port of the replicas cannot say who a client is.
func TestReplica_AStrangerIsRefused(t *testing.T) {
	t.Parallel()
	list := &roster{}
	leader, socket := join(t, list, apptest.Patience)
	lead(t, leader)
	other := &roster{} // of another database
	stranger, _ := join(t, other, time.Millisecond)
	apptest.NoError(t, other.Sign(t.Context(), replicaOf(t, list, leader.Address())))
	_, err := other.Lead(t.Context(), postgres.Replica{Address: leader.Address()}, 1)
	apptest.NoError(t, err)
	for {
		err := stranger.Ready(t.Context())
		if err == nil {
			t.Fatal("the leader has accepted a replica that is not in its list")
		}
		if strings.Contains(err.Error(), leader.Address()) { // it has tried
			break
		}
	}
	for name, config := range map[string]*tls.Config{
		"without a certificate": {InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"brokerd-replica/1"}},
		"of another protocol":   {InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}},
	} {
		conn, err := tls.Dial("tcp", leader.Address(), config)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := call(t, socket); err != nil {
		t.Error(err)
	}
}

func replicaOf(t *testing.T, list *roster, address string) postgres.Replica {
	t.Helper()
	all, err := list.Replicas(t.Context())
	apptest.NoError(t, err)
	i := slices.IndexFunc(all, func(one postgres.Replica) bool { return one.Address == address })
	if i < 0 {
		t.Fatalf("%s is not in the list", address)
	}
	return all[i]
}
