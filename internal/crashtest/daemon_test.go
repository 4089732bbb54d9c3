package crashtest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/processtest"
)

// A daemon is a brokerd process on a data folder, and a connection to it.
type daemon struct {
	*processtest.Daemon
	conn  *grpc.ClientConn
	begin func(ctx context.Context) error // starts the process

	agents   pb.AgentServiceClient
	admin    pb.AdminServiceClient
	channels pb.ChannelServiceClient
	events   pb.EventServiceClient
	locks    pb.LockServiceClient
	messages pb.MessageServiceClient
	sessions pb.SessionServiceClient
	state    pb.StateServiceClient
	tokens   pb.TokenServiceClient

	artifacts pb.ArtifactServiceClient
	blockers  pb.BlockerServiceClient
	decisions pb.DecisionServiceClient
	handoffs  pb.HandoffServiceClient
	tasks     pb.TaskServiceClient
	votes     pb.VoteServiceClient
}

// newDaemon returns a daemon that is not started, on a folder that is kept if the test fails.
func newDaemon(t *testing.T, program string) *daemon {
	t.Helper()
	d := &daemon{Daemon: processtest.New(t, program)}
	d.begin = d.Start
	t.Cleanup(d.disconnect)
	return d
}

// start starts the process, connects, and returns when it answers calls.
func (d *daemon) start(ctx context.Context) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	return d.connect()
}

// connect connects to the process.
func (d *daemon) connect() error { return d.connectTo(d.Address()) }

// connectTo connects to the first of some addresses that answers, and to another one when that connection is lost.
func (d *daemon) connectTo(addresses ...string) error {
	d.disconnect()
	places := manual.NewBuilderWithScheme("replicas")
	var state resolver.State
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	places.InitialState(state)
	var err error
	d.conn, err = grpc.NewClient("replicas:///broker",
		grpc.WithResolvers(places),
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: 20 * time.Second, // a follower waits for a leader meanwhile
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return err
	}
	d.agents = pb.NewAgentServiceClient(d.conn)
	d.admin = pb.NewAdminServiceClient(d.conn)
	d.channels = pb.NewChannelServiceClient(d.conn)
	d.events = pb.NewEventServiceClient(d.conn)
	d.locks = pb.NewLockServiceClient(d.conn)
	d.messages = pb.NewMessageServiceClient(d.conn)
	d.sessions = pb.NewSessionServiceClient(d.conn)
	d.state = pb.NewStateServiceClient(d.conn)
	d.tokens = pb.NewTokenServiceClient(d.conn)
	d.artifacts = pb.NewArtifactServiceClient(d.conn)
	d.blockers = pb.NewBlockerServiceClient(d.conn)
	d.decisions = pb.NewDecisionServiceClient(d.conn)
	d.handoffs = pb.NewHandoffServiceClient(d.conn)
	d.tasks = pb.NewTaskServiceClient(d.conn)
	d.votes = pb.NewVoteServiceClient(d.conn)
	return nil
}

// kill sends SIGKILL and waits for the end. Without a process it does nothing.
func (d *daemon) kill() {
	d.Kill()
	d.disconnect()
}

// terminate asks the process to stop and returns what it ended with.
func (d *daemon) terminate() error {
	err := d.Terminate()
	d.disconnect()
	return err
}

func (d *daemon) disconnect() {
	if d.conn != nil {
		_ = d.conn.Close()
		d.conn = nil
	}
}

// as returns a context for calls in the name of an agent.
func as(ctx context.Context, agent string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "brokerd-agent", agent)
}

// cut reports whether a call ended because the daemon was killed: nobody knows then what came of it.
func cut(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return true
	default:
		return errors.Is(err, io.EOF) || errors.Is(err, context.Canceled)
	}
}

// unavailable returns the error of one item of an answer if the broker could not write; nil if it has another one, or none.
func unavailable(e *pb.ItemError) error {
	if codes.Code(e.GetCode()) != codes.Unavailable {
		return nil
	}
	return status.Error(codes.Unavailable, e.GetMessage())
}

// pause waits for as long as d, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
