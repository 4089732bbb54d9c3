package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/auth"
	"brokerd/internal/fault"
	"brokerd/internal/postgrestest"
	"brokerd/internal/testkit"
)

// A member is one of several replicas in this process.
type member struct {
	app.Daemon
	stop func()
}

// runMember starts a replica, which is stopped when the test ends.
func runMember(t *testing.T, database string, options ...func(*app.Config)) *member {
	t.Helper()
	c := app.Config{Dir: folder(t), Store: database, Replica: "127.0.0.1:0", Version: "test", Metrics: "127.0.0.1:0",
		Pprof: "127.0.0.1:0", Listen: []string{"127.0.0.1:0"}}
	c.DiskUsed = func(string) (float64, error) { return 0, nil }
	for _, set := range options {
		set(&c)
	}
	running, err := apptest.RunReplica(c)
	apptest.NoError(t, err)
	m := &member{Daemon: running, stop: func() {
		if err := running.Stop(); err != nil {
			t.Error(err)
		}
	}}
	t.Cleanup(m.stop)
	return m
}

// connect returns a connection to the socket of a replica.
func (m *member) connect(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(m.Addresses()[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// overTCP returns a connection over TCP, and the context of a call on it that presents a secret.
func (m *member) overTCP(t *testing.T, secret string) (*grpc.ClientConn, context.Context) {
	t.Helper()
	conn, err := grpc.NewClient(m.Addresses()[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn, metadata.AppendToOutgoingContext(patient(t), "authorization", "Bearer "+secret)
}

// operator returns the secret in the operator's file of a replica.
func (m *member) operator(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.Dir(), auth.CredentialFile))
	apptest.NoError(t, err)
	return strings.TrimSpace(string(text))
}

// put makes change number n of a key through a replica, and repeats it under the same request id while no replica
// leads.
func put(t *testing.T, conn *grpc.ClientConn, key string, n int) {
	t.Helper()
	ctx, id := patient(t), fmt.Sprintf("00000000-0000-7000-8000-%06s%06x", fmt.Sprintf("%x", key), n)
	for {
		_, err := pb.NewStateServiceClient(conn).PutState(ctx, &pb.PutStateRequest{
			Key: key, RequestId: id, Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: id}},
		}, grpc.WaitForReady(true))
		if status.Code(err) == codes.Unavailable {
			continue
		}
		if err != nil {
			t.Errorf("change %d of %s: %v", n, key, err)
		}
		return
	}
}

// versionOf returns how often a key was changed.
func versionOf(t *testing.T, conn *grpc.ClientConn, key string) int64 {
	t.Helper()
	return apptest.Must(t, pb.NewStateServiceClient(conn).GetState, &pb.GetStateRequest{Key: key}).GetEntry().GetVersion()
}

func TestReplica_AFollowerForwardsAndTakesOver(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	first := runMember(t, database)
	put(t, first.connect(t), "k", 1)
	second := runMember(t, database)
	conn := second.connect(t)
	put(t, conn, "k", 2)
	wantProbes(t, second.Metrics(), http.StatusOK, "ready")
	first.stop()
	put(t, conn, "k", 3)
	if n := versionOf(t, conn, "k"); n != 3 {
		t.Errorf("the key was changed %d times, want 3", n)
	}
	wantProbes(t, second.Metrics(), http.StatusOK, "ready")
	status := apptest.Must(t, pb.NewAdminServiceClient(conn).GetStatus, &pb.GetStatusRequest{})
	started := apptest.Must(t, pb.NewEventServiceClient(conn).ListEvents,
		&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"broker.started"}}}).GetEvents()
	var details struct {
		Replica string
		Epoch   int64
		Clean   bool `json:"clean_stop"`
	}
	if len(started) != 2 {
		t.Fatalf("there are the events %v", started)
	}
	apptest.NoError(t, json.Unmarshal([]byte(started[1].GetDetails()), &details))
	if details.Replica != status.GetReplica() || details.Epoch != 2 || !details.Clean {
		t.Errorf("the event of the new leader %s has %s", status.GetReplica(), started[1].GetDetails())
	}
}

// A shiftedClock is the machine's clock, set to another time.
type shiftedClock struct {
	clockwork.Clock
	by time.Duration
}

// Now implements clockwork.Clock.
func (c shiftedClock) Now() time.Time { return c.Clock.Now().Add(c.by) }

// Leases, locks and claims survive a change to a replica whose clock is a day behind, and back to one that is ahead.
func TestReplica_ClocksMayBeADayApart(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	ahead := func(c *app.Config) { c.Clock = shiftedClock{clockwork.NewRealClock(), 24 * time.Hour} }
	leader := runMember(t, database, ahead)
	as := func(m *member) (*grpc.ClientConn, context.Context) {
		return m.connect(t), metadata.AppendToOutgoingContext(patient(t), "brokerd-agent", "builder")
	}
	conn, ctx := as(leader)
	_, err := pb.NewAgentServiceClient(conn).RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: "builder"})
	apptest.NoError(t, err)
	_, err = pb.NewLockServiceClient(conn).AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{"a"}})
	apptest.NoError(t, err)
	messages := pb.NewMessageServiceClient(conn)
	_, err = messages.SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder"}}, Subject: "work"}}})
	apptest.NoError(t, err)
	claimed, err := messages.ClaimMessages(ctx, &pb.ClaimMessagesRequest{})
	apptest.NoError(t, err)
	if len(claimed.GetClaims()) != 1 {
		t.Fatalf("claimed %v", claimed)
	}
	for i, clock := range []func(*app.Config){func(*app.Config) {}, ahead} {
		next := runMember(t, database, clock)
		leader.stop()
		leader = next
		conn, ctx = as(leader)
		put(t, conn, "k", i+2) // once it leads
		_, err := pb.NewMessageServiceClient(conn).ExtendClaims(ctx, &pb.ExtendClaimsRequest{Extensions: []*pb.Extension{{}}})
		if err != nil {
			t.Errorf("change %d: the claim: %v", i+1, err)
		}
		locks, err := pb.NewLockServiceClient(conn).ListLocks(ctx, &pb.ListLocksRequest{})
		if err != nil || len(locks.GetLocks()) != 1 || locks.GetLocks()[0].GetAgent() != "builder" {
			t.Errorf("change %d: the locks are %v, %v", i+1, locks.GetLocks(), err)
		}
	}
}

// What a caller may do does not depend on the replica to which it connects.
func TestReplica_CallersHaveTheSameRightsThroughAFollower(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	leader := runMember(t, database)
	root := leader.connect(t)
	put(t, root, "k", 1) // it leads
	follower := runMember(t, database)
	issue := func(in *pb.IssueCredentialRequest) *pb.IssueCredentialResponse {
		t.Helper()
		return apptest.Must(t, pb.NewCredentialServiceClient(root).IssueCredential, in)
	}
	observer := issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER})
	bound := issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, Session: "default", Agent: "builder"})
	try := func(secret, agent string) (read, write error) {
		conn, ctx := follower.overTCP(t, secret)
		if agent != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "brokerd-agent", agent)
		}
		states := pb.NewStateServiceClient(conn)
		_, read = states.GetState(ctx, &pb.GetStateRequest{Key: "k"})
		_, write = states.PutState(ctx, &pb.PutStateRequest{
			Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "2"}}})
		return read, write
	}
	for _, c := range []struct{ name, secret, agent, read, write string }{
		{"no credential", "", "", "CREDENTIAL_UNREADABLE", "CREDENTIAL_UNREADABLE"},
		{"a stranger", "secret", "", "CREDENTIAL_UNKNOWN", "CREDENTIAL_UNKNOWN"},
		{"the follower's operator", follower.operator(t), "", "", ""},
		{"the leader's operator", leader.operator(t), "", "", ""},
		{"an observer", observer.GetSecret(), "", "", "READ_ONLY"},
		{"an agent", bound.GetSecret(), "", "", "AGENT_NOT_REGISTERED"},
		{"an agent in the name of another", bound.GetSecret(), "reviewer", "CREDENTIAL_BOUND", "CREDENTIAL_BOUND"},
	} {
		read, write := try(c.secret, c.agent)
		if r, w := testkit.Reason(read), testkit.Reason(write); r != c.read || w != c.write {
			t.Errorf("%s: read %q, write %q; want %q and %q (%v, %v)", c.name, r, w, c.read, c.write, read, write)
		}
	}
	apptest.Must(t, pb.NewCredentialServiceClient(root).RevokeCredential, &pb.RevokeCredentialRequest{Id: observer.GetCredential().GetId()})
	if read, _ := try(observer.GetSecret(), ""); testkit.Reason(read) != "CREDENTIAL_REVOKED" {
		t.Errorf("a revoked credential: %v", read)
	}

	// HTTP, and the dashboard.
	for path, want := range map[string]string{"/v1/status": `"version"`, "/": "<!doctype html>"} {
		in, err := http.NewRequestWithContext(patient(t), http.MethodGet, "http://"+follower.Addresses()[1]+path, nil)
		apptest.NoError(t, err)
		in.Header.Set("Authorization", "Bearer "+follower.operator(t))
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		out, err := client.Do(in)
		apptest.NoError(t, err)
		text, err := io.ReadAll(out.Body)
		apptest.NoError(t, errors.Join(err, out.Body.Close()))
		if out.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
			t.Errorf("%s: %s: %.300s", path, out.Status, text)
		}
	}
}

// The lead changes twenty times under load, each time because the server ends the connection of the leader.
func TestReplica_NothingIsLostOrDoneTwiceWhenTheLeadIsLost(t *testing.T) {
	t.Parallel()
	const agents, depositions = 8, 20
	database := postgrestest.Database(t)
	members := []*member{runMember(t, database), runMember(t, database)}
	conns := []*grpc.ClientConn{members[0].connect(t), members[1].connect(t)}
	put(t, conns[0], "k", 1) // one leads
	stop := make(chan struct{})
	done := make([]int, agents)
	progress := make(chan struct{}, agents)
	var running sync.WaitGroup
	for agent := range agents {
		running.Go(func() {
			for !closed(stop) {
				done[agent]++
				put(t, conns[agent%2], fmt.Sprint("k", agent), done[agent])
				select {
				case progress <- struct{}{}:
				default:
				}
			}
		})
	}
	for range depositions {
		err := postgrestest.Run(database, `SELECT pg_terminate_backend(pid) FROM pg_locks
			WHERE locktype = 'advisory' AND objid = 1651665764 AND granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		apptest.NoError(t, err)
		for range 2 * agents { // what was confirmed before may still be in the channel
			<-progress
		}
	}
	close(stop)
	running.Wait()
	for agent := range agents {
		if n := versionOf(t, conns[0], fmt.Sprint("k", agent)); n != int64(done[agent]) {
			t.Errorf("agent %d has made %d changes, and the broker has %d", agent, done[agent], n)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestReplica_NeedsADatabaseToShareAndAnAddressOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, c := range []app.Config{
		{Replica: "127.0.0.1:0"},
		{Store: "postgres://localhost/b", Replica: "broker-a"},
		{Store: "postgres://localhost/b", Replica: ":7423"},
		{Store: "postgres://localhost/b", Replica: "0.0.0.0:7423"},
		{Store: "postgres://localhost/b", Replica: "[::]:7423"},
	} {
		c.Dir = folder(t)
		if err := app.Run(patient(t), c, nil); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s, %s: %v", c.Store, c.Replica, err)
		}
	}
}
