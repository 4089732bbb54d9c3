package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// errRefused is a message that the broker did not take.
var errRefused = errors.New("a message was refused")

// sender sends messages, each batch after the one before is confirmed.
type sender struct {
	m       *measurement
	stream  pb.MessageService_SendClient
	target  *pb.Target
	kind    string // type of the messages
	payload func(at time.Duration) string
	first   time.Duration // wait before the first send, so that paced senders do not send together
	name    string        // of the producer, if messages are numbered
	number  int64

	latencies []time.Duration // of batches, in workloads backlog and steady
}

func (m *measurement) openSender(ctx context.Context, c *client.Client, index int) (*sender, error) {
	stream, err := c.Messages().Send(ctx)
	if err != nil {
		return nil, fmt.Errorf("open a stream to send: %w", err)
	}
	s := &sender{
		m:      m,
		stream: stream,
		target: toRole(m.role),
		first:  m.pace * time.Duration(index) / time.Duration(m.senders),
	}
	s.kind, s.payload = m.o.content()
	if m.o.Numbered {
		s.name = c.Identity().Agent
	}
	return s, nil
}

// run sends until end, or until ctx ends.
func (s *sender) run(ctx context.Context, end time.Time) error {
	defer func() { s.m.add(s.latencies) }()
	for pause := s.first; ; pause = s.m.pace {
		if pause > 0 {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return ctx.Err()
			}
		}
		if !time.Now().Before(end) {
			return s.stream.CloseSend()
		}
		if err := s.send(); err != nil {
			return err
		}
	}
}

// send sends one batch and waits for its confirmation.
func (s *sender) send() error {
	request, began := s.request(), time.Now()
	if err := s.stream.Send(request); err != nil {
		_, err = s.stream.Recv() // Send says only that the stream is over
		return err
	}
	for missing := len(request.Messages); missing > 0; {
		answer, err := s.stream.Recv()
		if err != nil {
			return err
		}
		for _, r := range answer.GetResults() {
			if e := r.GetError(); e != nil {
				return fmt.Errorf("%w: %s", errRefused, e.GetMessage())
			}
			if r.GetRecipientCount() != 1 || r.GetRefusedCount() != 0 {
				return fmt.Errorf("%w: %d recipients, %d of them refused it", errRefused, r.GetRecipientCount(), r.GetRefusedCount())
			}
		}
		missing -= len(answer.GetResults())
		s.m.confirmed(len(answer.GetResults()))
	}
	if s.m.permits != nil {
		s.latencies = append(s.latencies, time.Since(began))
	}
	return nil
}

// request makes a batch. Payloads begin with the time, so that consumers can tell how long they took.
func (s *sender) request() *pb.SendRequest {
	now := time.Since(s.m.start)
	messages := make([]*pb.Message, s.m.batch)
	for i := range messages {
		messages[i] = &pb.Message{Target: s.target, Reach: pb.Reach_REACH_ONE, Type: s.kind, Payload: s.payload(now)}
	}
	request := &pb.SendRequest{Messages: messages}
	if s.name != "" {
		if s.number == 0 {
			request.Producer = s.name
		}
		request.FirstNumber = s.number + 1
		s.number += int64(len(messages))
	}
	return request
}

// consumer claims messages and acknowledges each as soon as it has it.
type consumer struct {
	m      *measurement
	stream pb.MessageService_ClaimClient
}

func (m *measurement) openConsumer(ctx context.Context, c *client.Client) (*consumer, error) {
	stream, err := openClaims(ctx, c, &pb.ClaimOpen{MaxInFlight: int32(m.claims), MaxBytes: 64 << 20})
	if err != nil {
		return nil, err
	}
	return &consumer{m: m, stream: stream}, nil
}

// openClaims opens a stream and waits until the broker knows of it.
func openClaims(ctx context.Context, c *client.Client, open *pb.ClaimOpen) (pb.MessageService_ClaimClient, error) {
	stream, err := c.Messages().Claim(ctx)
	if err != nil {
		return nil, fmt.Errorf("open a stream to claim: %w", err)
	}
	_ = stream.Send(&pb.ClaimRequest{Open: open}) // if it fails, Recv says why
	if _, err := stream.Recv(); err != nil {
		return nil, fmt.Errorf("open a stream to claim: %w", err)
	}
	return stream, nil
}

// run consumes until the stream ends.
func (c *consumer) run() error {
	var latencies []time.Duration
	defer func() { c.m.add(latencies) }()
	ctx, cancel := context.WithCancel(c.stream.Context())
	pending := make(chan []string, c.m.claims) // holds every frame of claims not yet acknowledged
	var acking sync.WaitGroup
	defer acking.Wait()
	defer close(pending)
	defer cancel()
	if c.m.permits != nil {
		acking.Go(func() { c.ackPermitted(ctx, pending) })
	}
	for {
		frame, err := c.stream.Recv()
		if err != nil {
			return err
		}
		switch f := frame.GetFrame().(type) {
		case *pb.ClaimResponse_Deliver:
			now := time.Since(c.m.start)
			acks := make([]string, len(f.Deliver.GetClaims()))
			for i, claim := range f.Deliver.GetClaims() {
				sent, err := sentAt(claim.GetMessage().GetPayload())
				if err != nil {
					return err
				}
				if c.m.permits == nil {
					latencies = append(latencies, now-sent)
				}
				acks[i] = claim.GetClaimId()
			}
			if c.m.permits != nil {
				pending <- acks
			} else if err := c.stream.Send(&pb.ClaimRequest{Acks: acks}); err != nil {
				_, err = c.stream.Recv()
				return err
			}
		case *pb.ClaimResponse_Results:
			for _, r := range f.Results.GetResults() {
				if e := r.GetError(); e != nil {
					return fmt.Errorf("acknowledge: %s", e.GetMessage())
				}
			}
			c.m.acknowledged(len(f.Results.GetResults()))
		case *pb.ClaimResponse_Revoke:
			return errors.New("a claim was revoked")
		case *pb.ClaimResponse_GoAway:
			return errors.New("the broker stops")
		}
	}
}

// ackPermitted acknowledges frames of claims as permits permit. Meanwhile run reads the results of earlier ones.
func (c *consumer) ackPermitted(ctx context.Context, frames <-chan []string) {
	for acks := range frames {
		if c.m.permits.Acquire(ctx, int64(len(acks))) != nil || c.stream.Send(&pb.ClaimRequest{Acks: acks}) != nil {
			return // Recv says why
		}
	}
}

// toRole is a role as target.
func toRole(name string) *pb.Target { return &pb.Target{To: &pb.Target_Role{Role: name}} }

// A payload is a JSON string of the size asked for, or a JSON object of ten fields that fits the type test_result.
// Both have the nanoseconds since the start of the round as 16 hexadecimal digits: the string begins with them, the
// object has them in its first field.
const (
	timeDigits  = 16
	objectStart = `{"at":`
	objectEnd   = `,"task_id":"t-4711","branch":"main","passed":41,"failed":0,"attempt":2,"seconds":12.5,` +
		`"files":["src/main.go","src/main_test.go"],"parent":null,"summary":"`
)

// content returns the type of messages and how to make their payloads. Only test_result has a schema, which the broker
// checks.
func (o *Options) content() (kind string, payload func(time.Duration) string) {
	if o.Objects {
		return "test_result", objectOf(o.Size)
	}
	return "bench", textOf(o.Size)
}

func padding(size int) string { return strings.Repeat("x", size-MinSize) }

// textOf returns how to make payloads that are strings.
func textOf(size int) func(time.Duration) string {
	padding := padding(size)
	return func(at time.Duration) string { return payload(at, padding) }
}

// objectOf returns how to make payloads that are objects. They are larger than size if ten fields need more.
func objectOf(size int) func(time.Duration) string {
	rest := objectEnd + strings.Repeat("x", max(0, size-MinSize-len(objectStart+objectEnd+`"}`))) + `"}`
	return func(at time.Duration) string { return objectStart + payload(at, "") + rest }
}

func payload(at time.Duration, padding string) string {
	return fmt.Sprintf(`"%0*x%s"`, timeDigits, int64(at), padding)
}

// sentAt returns the time in a payload.
func sentAt(payload string) (time.Duration, error) {
	text := strings.TrimPrefix(payload, objectStart)
	if len(text) < MinSize {
		return 0, fmt.Errorf("a payload came back changed: %q", payload)
	}
	at, err := strconv.ParseUint(text[1:1+timeDigits], 16, 63)
	if err != nil {
		return 0, fmt.Errorf("a payload came back changed: %w", err)
	}
	return time.Duration(at), nil
}
