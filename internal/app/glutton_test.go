package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A glutton is an agent that goes beyond every limit.
type glutton struct {
	t        *testing.T
	broker   *apptest.Broker
	ctx      context.Context
	messages pb.MessageServiceClient
	channels pb.ChannelServiceClient
}

func newGlutton(t *testing.T, b *apptest.Broker) *glutton {
	t.Helper()
	conn := b.Registered("glutton", "eater")
	return &glutton{
		t, b, patient(t), pb.NewMessageServiceClient(conn), pb.NewChannelServiceClient(conn),
	}
}

func text(n int) string { return strings.Repeat("x", n) }

func labels(n int) map[string]string {
	all := map[string]string{}
	for i := range n {
		all[fmt.Sprintf("k%d", i)] = ""
	}
	return all
}

// make1001 is one item more than most lists may have.
func make1001[T any](item T) []T { return slices.Repeat([]T{item}, 1001) }

// changed is a message to the glutton itself.
func changed(change func(m *pb.Message)) *pb.Message {
	m := &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "glutton"}}}
	change(m)
	return m
}

func nothing(*pb.Message) {}

// tooLarge makes a message of which each field is within its limits.
func tooLarge(m *pb.Message) {
	m.Body, m.Artifacts = text(250<<10), slices.Repeat([]string{text(1000)}, 900)
}

func (g *glutton) send(change func(m *pb.Message)) func() error {
	return func() error {
		return apptest.Err(g.messages.SendMessages(g.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{changed(change)}}))
	}
}

// toVictim is a message to another agent.
func toVictim(m *pb.Message) { m.Target = &pb.Target{To: &pb.Target_Agent{Agent: "victim"}} }

// refused sends to the victim until its mailbox, which has room for one, refuses more.
func (g *glutton) refused() error {
	request := &pb.SendMessagesRequest{Messages: []*pb.Message{changed(toVictim), changed(toVictim)}}
	out, err := g.messages.SendMessages(g.ctx, request)
	if err != nil {
		return err
	}
	second := out.Results[1]
	if out.Results[0].RefusedCount != 0 || second.RefusedCount != 1 || second.Recipients[0].Outcome != pb.RecipientOutcome_RECIPIENT_OUTCOME_REFUSED {
		return fmt.Errorf("a mailbox with room for one: %v", out)
	}
	return nil
}

// streamed sends through a stream and returns its error, or that of the first result.
func (g *glutton) streamed(messages ...*pb.Message) error {
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	stream, err := g.messages.Send(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.SendRequest{Messages: messages}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	answer, err := stream.Recv()
	if err != nil {
		return err
	}
	return itemError(answer.GetResults()[0].GetError())
}

// itemError puts the error of an item as that of a call.
func itemError(e *pb.ItemError) error {
	if e == nil {
		return nil
	}
	s, err := status.New(codes.Code(e.GetCode()), e.GetMessage()).WithDetails(&errdetails.ErrorInfo{Reason: e.GetReason()},
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: e.GetField()}}})
	return errors.Join(err, s.Err())
}

// taking opens a stream of claims, sends it another frame unless that is nil, and returns why it ends.
func (g *glutton) taking(open *pb.ClaimOpen, then *pb.ClaimRequest) error {
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	stream, err := g.messages.Claim(ctx)
	if err != nil {
		return err
	}
	for _, frame := range []*pb.ClaimRequest{{Open: open}, then} {
		if frame == nil {
			continue
		}
		if err := stream.Send(frame); err != nil {
			return err
		}
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// openStream opens a stream that ends with the context, and waits until the broker has it.
func (g *glutton) openStream(ctx context.Context) error {
	stream, err := g.messages.Send(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.SendRequest{Messages: []*pb.Message{{}}}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return apptest.Err(stream.Recv())
}

// connect makes a call through a new connection, which stays open.
func (g *glutton) connect() error {
	conn, err := grpc.NewClient(g.broker.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	ctx := metadata.AppendToOutgoingContext(g.ctx, "brokerd-agent", "glutton")
	return apptest.Err(pb.NewMessageServiceClient(conn).ListMessages(ctx, &pb.ListMessagesRequest{}))
}
