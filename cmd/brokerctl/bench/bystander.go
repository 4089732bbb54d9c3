package bench

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// A bystander is an agent that makes one call at a time while others burden the broker. It sends
// messages to itself and acknowledges the oldest that waits for it.
type bystander struct {
	c    *client.Client
	took map[string][]time.Duration // by call
}

// bystand joins the bystander and puts the waiting messages into its mailbox.
func (b *bench) bystand(ctx context.Context, prefix string) (*bystander, error) {
	name := prefix + "-bystander"
	c, err := b.join(ctx, name, "bystander")
	if err != nil {
		return nil, err
	}
	err = b.fill(ctx, prefix+"-filler", b.o.Waiting, func(int) *pb.Target {
		return &pb.Target{To: &pb.Target_Agent{Agent: name}}
	})
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("fill the bystander's mailbox: %w", err)
	}
	return &bystander{c: c, took: map[string][]time.Duration{}}, nil
}

// run makes calls until the end, and returns one result for each kind of call.
func (s *bystander) run(ctx context.Context, end time.Time) ([]Result, error) {
	started := time.Now()
	for time.Now().Before(end) {
		if err := s.round(ctx); err != nil {
			return nil, fmt.Errorf("bystander: %w", err)
		}
	}
	var results []Result
	for _, call := range []string{"send", "claim", "ack", "heartbeat", "status"} {
		r := resultOf(len(s.took[call]), time.Since(started), s.took[call])
		r.Workload = call
		results = append(results, r)
	}
	return results, nil
}

// round makes each call once.
func (s *bystander) round(ctx context.Context) error {
	self := &pb.Target{To: &pb.Target_Agent{Agent: s.c.Identity().Agent}}
	var claims *pb.ClaimMessagesResponse
	for _, call := range []struct {
		name string
		do   func() error
	}{
		{"send", func() error {
			_, err := s.c.Messages().SendMessages(ctx, &pb.SendMessagesRequest{
				Messages: []*pb.Message{{Target: self, Type: "bench", Subject: "bystander"}}})
			return err
		}},
		{"claim", func() (err error) {
			claims, err = s.c.Messages().ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 1})
			return err
		}},
		{"ack", func() error {
			if len(claims.GetClaims()) != 1 {
				return fmt.Errorf("claimed %d messages, not 1", len(claims.GetClaims()))
			}
			_, err := s.c.Messages().AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{claims.GetClaims()[0].GetClaimId()}})
			return err
		}},
		{"heartbeat", func() error {
			_, err := s.c.Agents().Heartbeat(ctx, &pb.HeartbeatRequest{})
			return err
		}},
		{"status", func() error {
			_, err := s.c.As("").Admin().GetStatus(ctx, &pb.GetStatusRequest{})
			return err
		}},
	} {
		began := time.Now()
		if err := call.do(); err != nil {
			return fmt.Errorf("%s: %w", call.name, err)
		}
		s.took[call.name] = append(s.took[call.name], time.Since(began))
	}
	return nil
}

// beside runs a burden until the bystander has made its calls for as long as a workload lasts.
// The burden returns how often it did its work; it ends when its context does.
func (b *bench) beside(ctx context.Context, s *bystander, burden func(context.Context) (int, error)) (Result, error) {
	usage, err := b.meter(ctx)
	if err != nil {
		return Result{}, err
	}
	defer usage.stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	burdening, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan int, 1)
	started := time.Now()
	go func() {
		n, err := burden(burdening)
		if burdening.Err() == nil { // it ended before it was stopped
			cancel(err)
		}
		done <- n
	}()
	parts, err := s.run(ctx, started.Add(b.o.Duration))
	r := Result{Parts: parts}
	if err == nil {
		err = usage.into(ctx, &r) // while the burden lasts: its memory counts
	}
	stop()
	r.Count = <-done
	r.CPU /= time.Duration(max(r.Count, 1))
	r.Took = time.Since(started)
	r.PerSecond = float64(r.Count) / r.Took.Seconds()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return r, err
}

// churn: agents register and deregister, and an operator changes settings of the session. The first
// agent to deregister has the waiting messages in its own mailbox.
func churn(ctx context.Context, b *bench, prefix string) (Result, error) {
	s, err := b.bystand(ctx, prefix)
	if err != nil {
		return Result{}, err
	}
	defer s.c.Close()
	leaver, err := b.join(ctx, prefix+"-leaver", "leaver")
	if err != nil {
		return Result{}, err
	}
	defer leaver.Close()
	err = b.fill(ctx, prefix+"-filler", b.o.Waiting, func(int) *pb.Target {
		return &pb.Target{To: &pb.Target_Agent{Agent: leaver.Identity().Agent}}
	})
	if err != nil {
		return Result{}, fmt.Errorf("fill the leaver's mailbox: %w", err)
	}
	return b.beside(ctx, s, func(ctx context.Context) (n int, err error) {
		for ; ctx.Err() == nil; n++ {
			if _, err := leaver.Agents().DeregisterAgent(ctx, &pb.DeregisterAgentRequest{}); err != nil {
				return n, err
			}
			if _, err := leaver.Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: "leaver"}); err != nil {
				return n, err
			}
			settings := &pb.SessionSettings{SendBurst: proto.Int32(int32(100 + n%2))}
			if n%10 == 0 { // the broker ranks all waiting messages again
				settings.Ageing = durationpb.New(time.Duration(5+n/10%2) * time.Minute)
			}
			_, err := leaver.As("").Sessions().ConfigureSession(ctx, &pb.ConfigureSessionRequest{Settings: settings})
			if err != nil {
				return n, err
			}
		}
		return n, nil
	})
}
