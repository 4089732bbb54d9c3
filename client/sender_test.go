package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func message(subject string) *pb.Message { return &pb.Message{Subject: subject} }

// confirm answers messages as sent; the id says which subject is meant.
func confirm(messages ...*pb.Message) *pb.SendResponse {
	answer := &pb.SendResponse{}
	for _, m := range messages {
		answer.Results = append(answer.Results, &pb.SendResult{Id: "id-" + m.GetSubject()})
	}
	return answer
}

// outcome is what a Send in a goroutine came to.
type outcome struct {
	result *pb.SendResult
	err    error
}

// later sends in a goroutine.
func later(ctx context.Context, s *client.Sender, m *pb.Message) chan outcome {
	c := make(chan outcome, 1)
	go func() {
		r, err := s.Send(ctx, m)
		c <- outcome{r, err}
	}()
	return c
}

func newSender(t *testing.T, c *client.Client, o client.SenderOptions) *client.Sender {
	t.Helper()
	s := c.NewSender(o)
	t.Cleanup(s.Close)
	return s
}

func TestSender_EveryConcurrentSendGetsItsOwnResult(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := newSender(t, c, client.SenderOptions{})
	const senders, each = 16, 20
	served := make(chan error, 1)
	go func() {
		stream := <-f.sends
		numbers := int64(0)
		for left := senders * each; left > 0; {
			frame, err := stream.Recv()
			if err != nil {
				served <- err
				return
			}
			if frame.GetFirstNumber() != numbers+1 {
				served <- fmt.Errorf("frame begins with number %d after %d", frame.GetFirstNumber(), numbers)
				return
			}
			numbers += int64(len(frame.GetMessages()))
			left -= len(frame.GetMessages())
			if err := stream.Send(confirm(frame.GetMessages()...)); err != nil {
				served <- err
				return
			}
		}
		served <- nil
	}()
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for j := range each {
				subject := fmt.Sprintf("%d-%d", i, j)
				r, err := s.Send(t.Context(), message(subject))
				if err != nil || r.GetId() != "id-"+subject {
					t.Errorf("send %s: %v, %v", subject, r, err)
					return
				}
			}
		})
	}
	wg.Wait()
	apptest.NoError(t, next(t, served))
}

func TestSender_SendsAgainWhatTheBrokenStreamLeftUnconfirmed(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := newSender(t, c, client.SenderOptions{})
	batch := []*pb.Message{message("a"), message("b"), message("c")}
	got := make(chan error, 1)
	var results []*pb.SendResult
	go func() {
		var err error
		results, err = s.SendBatch(t.Context(), batch)
		got <- err
	}()
	first := next(t, f.sends)
	frame := first.recv(t)
	if frame.GetProducer() == "" || frame.GetFirstNumber() != 1 || len(frame.GetMessages()) != 3 {
		t.Fatalf("first frame: %v", frame)
	}
	tail := later(t.Context(), s, message("d"))
	if d := first.recv(t); d.GetFirstNumber() != 4 || d.GetProducer() != "" {
		t.Fatalf("second frame: %v", d)
	}
	first.send(t, confirm(batch[0]))
	first.end <- errCut

	second := next(t, f.sends)
	again := second.recv(t)
	if again.GetProducer() != frame.GetProducer() || again.GetFirstNumber() != 2 || len(again.GetMessages()) != 2 || again.GetMessages()[0].GetSubject() != "b" {
		t.Fatalf("sent again: %v", again)
	}
	if d := second.recv(t); d.GetFirstNumber() != 4 || len(d.GetMessages()) != 1 {
		t.Fatalf("sent again: %v", d)
	}
	second.send(t, confirm(message("b"), message("c"), message("d")))
	apptest.NoError(t, next(t, got))
	if len(results) != 3 || results[0].GetId() != "id-a" || results[2].GetId() != "id-c" {
		t.Fatalf("results: %v", results)
	}
	if d := next(t, tail); d.err != nil || d.result.GetId() != "id-d" {
		t.Fatalf("tail: %v", d)
	}
}

func TestSender_UnavailableForAnItemIsSentAgain(t *testing.T) {
	t.Parallel()
	notices := make(chan error, 8)
	f, c := newFake(t, client.WithRetryNotice(func(err error, _ time.Duration) { notices <- err }))
	s := newSender(t, c, client.SenderOptions{})
	got := later(t.Context(), s, message("a"))
	first := next(t, f.sends)
	first.recv(t)
	first.send(t, &pb.SendResponse{Results: []*pb.SendResult{{Error: &pb.ItemError{Code: int32(codes.Unavailable), Message: "the disk is full"}}}})
	if err := next(t, notices); !strings.Contains(err.Error(), "the disk is full") {
		t.Fatalf("notice: %v", err)
	}
	second := next(t, f.sends)
	if again := second.recv(t); again.GetFirstNumber() != 1 {
		t.Fatalf("sent again: %v", again)
	}
	second.send(t, confirm(message("a")))
	if o := next(t, got); o.err != nil {
		t.Fatal(o.err)
	}
}

func TestSender_RefusedItemIsATypedErrorAndTheOthersAreSent(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := newSender(t, c, client.SenderOptions{})
	refusal := &pb.ItemError{Code: int32(codes.InvalidArgument), Reason: "INVALID_ARGUMENT", Message: "priority: is 11",
		Field: "messages[1].priority", RetryAfter: durationpb.New(time.Second)}
	go func() {
		stream := <-f.sends
		frame, err := stream.Recv()
		if err == nil {
			answer := confirm(frame.GetMessages()...)
			answer.Results[1] = &pb.SendResult{Error: refusal}
			_ = stream.Send(answer)
		}
	}()
	results, err := s.SendBatch(t.Context(), []*pb.Message{message("a"), message("b"), message("c")})
	if len(results) != 3 || results[2].GetId() != "id-c" {
		t.Fatalf("results: %v", results)
	}
	var batch *client.BatchError
	if !errors.As(err, &batch) || len(batch.Items) != 1 || batch.Items[0].Index != 1 {
		t.Fatalf("error: %v", err)
	}
	wantCode(t, err, codes.InvalidArgument)
	if client.Reason(err) != "INVALID_ARGUMENT" || client.RetryDelay(err) != time.Second {
		t.Fatalf("reason %q, retry after %v", client.Reason(err), client.RetryDelay(err))
	}
	if fields := client.Fields(err); len(fields) != 1 || fields[0].Name != "messages[1].priority" {
		t.Fatalf("fields: %v", fields)
	}
}

func TestSender_LastingErrorFailsWhatWaitsAndTheNextSendTriesAgain(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := newSender(t, c, client.SenderOptions{})
	got := later(t.Context(), s, message("a"))
	first := next(t, f.sends)
	first.recv(t)
	first.end <- status.Error(codes.FailedPrecondition, "not registered")
	wantCode(t, next(t, got).err, codes.FailedPrecondition)

	got = later(t.Context(), s, message("b"))
	second := next(t, f.sends)
	if frame := second.recv(t); frame.GetFirstNumber() != 2 || frame.GetProducer() == "" {
		t.Fatalf("frame: %v", frame)
	}
	second.send(t, confirm(message("b")))
	if o := next(t, got); o.err != nil {
		t.Fatal(o.err)
	}
}

func TestSender_WindowBoundsWhatIsUnconfirmed(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := newSender(t, c, client.SenderOptions{Window: 2})
	for _, subject := range []string{"a", "b"} {
		apptest.NoError(t, apptest.Err(s.SendAsync(t.Context(), message(subject))))
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.SendAsync(gone, message("c"))
	wantIs(t, err, context.Canceled)

	waiting := make(chan error, 1)
	go func() {
		_, err := s.SendAsync(t.Context(), message("d"))
		waiting <- err
	}()
	stream := next(t, f.sends)
	seen := 0
	for seen < 2 {
		seen += len(stream.recv(t).GetMessages())
	}
	select {
	case err := <-waiting:
		t.Fatalf("a third message was let in: %v", err)
	default:
	}
	stream.send(t, confirm(message("a")))
	apptest.NoError(t, next(t, waiting))
	if d := stream.recv(t); d.GetMessages()[0].GetSubject() != "d" {
		t.Fatalf("frame: %v", d)
	}
}

func TestSender_CutsLargeBatchesIntoFramesThatTheBrokerTakes(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := newSender(t, c, client.SenderOptions{Window: 5000})
	big := strings.Repeat("x", 1<<20)
	var batch []*pb.Message
	for range 6 {
		batch = append(batch, &pb.Message{Body: big})
	}
	for range 2100 {
		batch = append(batch, message("small"))
	}
	got := make(chan error, 1)
	go func() {
		_, err := s.SendBatch(t.Context(), batch)
		got <- err
	}()
	stream := next(t, f.sends)
	var frames []int
	for seen := 0; seen < len(batch); {
		frame := stream.recv(t)
		if frame.GetFirstNumber() != int64(seen+1) {
			t.Fatalf("frame begins with %d after %d messages", frame.GetFirstNumber(), seen)
		}
		bytes := 0
		for _, m := range frame.GetMessages() {
			bytes += len(m.GetBody())
		}
		if n := len(frame.GetMessages()); n > 1000 || bytes > 4<<20 {
			t.Fatalf("a frame of %d messages and %d bytes", n, bytes)
		}
		frames = append(frames, len(frame.GetMessages()))
		seen += len(frame.GetMessages())
		stream.send(t, confirm(frame.GetMessages()...))
	}
	if err := next(t, got); err != nil {
		t.Fatalf("%v (frames %v)", err, frames)
	}
}

func TestSender_GivenUpMessageIsNotSentAgain(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := newSender(t, c, client.SenderOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	given := later(ctx, s, message("given up"))
	first := next(t, f.sends)
	first.recv(t)
	kept := later(t.Context(), s, message("kept"))
	first.recv(t)
	cancel()
	wantIs(t, next(t, given).err, context.Canceled)
	first.end <- errCut

	second := next(t, f.sends)
	if frame := second.recv(t); frame.GetFirstNumber() != 2 || len(frame.GetMessages()) != 1 || frame.GetMessages()[0].GetSubject() != "kept" {
		t.Fatalf("sent again: %v", frame)
	}
	second.send(t, confirm(message("kept")))
	if o := next(t, kept); o.err != nil {
		t.Fatal(o.err)
	}
}

func TestSender_CloseEndsWhatWaits(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	s := c.NewSender(client.SenderOptions{})
	got := later(t.Context(), s, message("a"))
	next(t, f.sends).recv(t)
	s.Close()
	wantIs(t, next(t, got).err, client.ErrSenderClosed)
	_, err := s.Send(t.Context(), message("b"))
	wantIs(t, err, client.ErrSenderClosed)
	s.Close()
}
