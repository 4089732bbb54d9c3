package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A world is a daemon with the parties of the abuse table. All of them use loopback and credentials.
type world struct {
	*target
	admin     *client // an operator
	alice     *client // agents of the session default
	bob       *client
	carol     *client
	stranger  *client // an agent of the session other
	observer  *client
	impostor  *client // alice's credential with bob's name
	nameless  *client // without a credential
	revoked   *client // its credential is revoked
	cramped   *client // an agent of the session small, which has as much as it may have
	neighbour *client // another agent of that session
	director  *client // an operator in that session

	message string // from alice to bob
	fence   int64  // of a lock of alice
	key     string // of alice
	claims  [2]string
}

// newWorld starts a daemon and everything that the rows of the table refer to.
func newWorld(t testing.TB, args ...string) *world {
	t.Helper()
	s := launch(t, nil, args...)
	w := &world{target: s, key: "plan"}
	s.session("other", nil)
	s.session("small", &pb.SessionSettings{MailboxLimit: proto.Int64(1), SendRate: proto.Float64(1),
		SendBurst: proto.Int32(10), ArtifactTotalLimit: proto.Int64(1024)})
	_, secret := s.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR, "", "")
	w.admin = s.tcpClient(party{secret: secret})
	w.alice, w.bob, w.carol = s.agent("default", "alice"), s.agent("default", "bob"), s.agent("default", "carol")
	w.stranger = s.agent("other", "stranger")
	w.cramped, w.neighbour = s.agent("small", "cramped"), s.agent("small", "neighbour")
	w.director = s.operator("small")
	_, secret = s.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER, "default", "")
	w.observer = s.tcpClient(party{secret: secret})
	_, secret = s.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, "default", "alice")
	w.impostor = s.tcpClient(party{secret: secret, agent: "bob"})
	w.nameless = s.tcpClient(party{})
	id, secret := s.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, "default", "dave")
	w.revoked = s.tcpClient(party{secret: secret})
	for _, prepare := range []func(context.Context) error{
		func(ctx context.Context) error {
			return apptest.Err(w.revoked.RegisterAgent(ctx, &pb.RegisterAgentRequest{}))
		},
		func(ctx context.Context) error { return w.revoke(ctx, id) }, w.possess, w.claim, w.fillMailbox, w.queue, w.watch,
	} {
		apptest.NoError(t, prepare(patient(t)))
	}
	return w
}

// possess creates what other parties must not reach.
func (w *world) possess(ctx context.Context) error {
	sent, err := w.alice.SendMessages(ctx, send(to("bob")))
	if err != nil {
		return err
	}
	w.message = sent.Results[0].Id
	_, err = w.alice.PutState(ctx, &pb.PutStateRequest{Key: w.key, Value: integer(1), Own: proto.Bool(true)})
	if err != nil {
		return err
	}
	hold := durationpb.New(week)
	lock, err := w.alice.AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{"src/a.go"}, MaxHold: hold})
	if err != nil {
		return err
	}
	w.fence = lock.Fence
	return apptest.Err(w.alice.AcquireToken(ctx, &pb.AcquireTokenRequest{Type: "merge", Scope: "main", MaxHold: hold}))
}

// claim makes carol claim a message twice. The first claim is stale.
func (w *world) claim(ctx context.Context) error {
	if _, err := w.alice.SendMessages(ctx, send(to("carol"))); err != nil {
		return err
	}
	for i := range w.claims {
		got, err := w.carol.ClaimMessages(ctx, &pb.ClaimMessagesRequest{ClaimFor: durationpb.New(12 * time.Hour)})
		if err != nil {
			return err
		}
		w.claims[i] = got.Claims[0].ClaimId
		if i == 0 {
			if _, err := w.carol.ReleaseClaims(ctx, &pb.ReleaseClaimsRequest{Ids: w.claims[:1]}); err != nil {
				return err
			}
		}
	}
	return nil
}

// fillMailbox fills the mailbox of the neighbour and the artifacts of the session small.
func (w *world) fillMailbox(ctx context.Context) error {
	if _, err := w.cramped.SendMessages(ctx, send(to("neighbour"))); err != nil {
		return err
	}
	return w.upload(ctx, w.cramped, "full.bin", 1024)
}

// queue makes the neighbour hold a folder, and the greatest number of requests wait for it.
func (w *world) queue(ctx context.Context) error {
	_, err := w.neighbour.AcquireLocks(ctx, &pb.AcquireLocksRequest{
		Paths: []string{"src/"}, MaxHold: durationpb.New(week),
	})
	if err != nil {
		return err
	}
	held, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	stream, err := w.cramped.Lock(held)
	if err != nil {
		return err
	}
	for i := range int64(1000) {
		err := stream.Send(&pb.LockRequest{Number: i + 1, Request: &pb.LockRequest_Acquire{Acquire: &pb.AcquireLocksRequest{
			Paths: []string{fmt.Sprintf("src/%d", i)}, Wait: durationpb.New(24 * time.Hour), MaxHold: durationpb.New(week),
		}}})
		if err != nil {
			return err
		}
	}
	for {
		status, err := w.director.GetStatus(ctx, &pb.GetStatusRequest{})
		if err != nil || status.Tickets == 1000 {
			return err
		}
	}
}

// watch opens as many watches as the broker permits: 100 of them are an agent's.
func (w *world) watch(ctx context.Context) error {
	held, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	for i := range 1000 {
		c := w.stranger
		if i >= 100 {
			c = w.admin
		}
		stream, err := c.WatchState(held, &pb.WatchStateRequest{})
		if err != nil {
			return err
		}
		if _, err := stream.Recv(); err != nil { // the first progress mark
			return fmt.Errorf("watch %d: %w", i, err)
		}
	}
	return ctx.Err()
}

// week is the longest lease and the longest hold.
const week = 7 * 24 * time.Hour

// upload uploads an artifact of a size.
func (w *world) upload(ctx context.Context, c *client, name string, size int) error {
	stream, err := c.UploadArtifact(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: &pb.ArtifactHeader{
		Name: name, Size: int64(size),
	}}})
	if err == nil {
		err = stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: make([]byte, size)}})
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return apptest.Err(stream.CloseAndRecv())
}

// send is a request with messages.
func send(messages ...*pb.Message) *pb.SendMessagesRequest {
	return &pb.SendMessagesRequest{Messages: messages}
}

// to is a message to an agent, with changes.
func to(agent string, changes ...func(*pb.Message)) *pb.Message {
	m := &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: agent}}}
	for _, change := range changes {
		change(m)
	}
	return m
}

func integer(n int64) *pb.StateValue {
	return &pb.StateValue{Value: &pb.StateValue_IntegerValue{IntegerValue: n}}
}

func paths(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = "p" + strconv.Itoa(i)
	}
	return all
}

// raw is a codec that sends bytes as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (raw) Unmarshal([]byte, any) error { return nil }

// invoke makes a unary call with bytes as its request.
func (c *client) invoke(ctx context.Context, method string, request []byte) error {
	return c.conn.Invoke(ctx, method, request, &[]byte{}, grpc.ForceCodec(raw{}))
}
