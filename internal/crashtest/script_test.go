package crashtest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// A script is a fixed series of changes of every feature, by one client, one after the other. Each
// call has a request id and may be repeated. The same steps give the same events in every run.
type script struct {
	steps []job
	odds  *oddJobber
	state int64 // confirmed version of the key "counter"
	sent  map[string]string
}

// newScript returns the steps, for one run.
func newScript(t *testing.T) *script {
	s := &script{odds: newOddJobber(newRecord(t), rand.New(rand.NewPCG(1, 2))), sent: map[string]string{}}
	s.steps = append(s.steps, s.mail()...)
	s.steps = append(s.steps, holds()...)
	s.steps = append(s.steps, s.keys()...)
	for _, kind := range []func() []job{
		s.odds.handOver, s.odds.upload, s.odds.cancel, s.odds.review, s.odds.purge, s.odds.leave, s.odds.block, s.odds.vote,
	} {
		s.odds.number++
		s.steps = append(s.steps, kind()...)
	}
	return s
}

// mail sends messages, claims them, and settles each claim in another way.
func (s *script) mail() []job {
	var steps []job
	for i := range 3 {
		subject := fmt.Sprintf("letter %d", i)
		send := &pb.SendMessagesRequest{RequestId: requestID(), Messages: []*pb.Message{
			{Target: toAgent("answerer"), Subject: subject, Type: "work", Payload: fmt.Sprintf(`{"n":"%01000d"}`, i)}}}
		steps = append(steps, func(ctx context.Context, d *daemon) error {
			answer, err := d.messages.SendMessages(inOdds(ctx, "asker"), send)
			if err == nil {
				s.sent[subject] = answer.GetResults()[0].GetId()
			}
			return err
		})
	}
	var claims []string
	acks := &pb.AckMessagesRequest{RequestId: requestID()}
	nacks := &pb.NackMessagesRequest{RequestId: requestID()}
	releases := &pb.ReleaseClaimsRequest{RequestId: requestID()}
	return append(steps, func(ctx context.Context, d *daemon) error {
		answer, err := d.messages.ClaimMessages(inOdds(ctx, "answerer"), &pb.ClaimMessagesRequest{Max: 10, ClaimFor: durationpb.New(time.Hour)})
		if err != nil {
			return err
		}
		if len(answer.GetClaims()) != 3 {
			return fmt.Errorf("claimed %v", answer)
		}
		for _, c := range answer.GetClaims() {
			claims = append(claims, c.GetClaimId())
		}
		return nil
	}, func(ctx context.Context, d *daemon) error {
		acks.Ids = claims[:1]
		_, err := d.messages.AckMessages(inOdds(ctx, "answerer"), acks)
		return err
	}, func(ctx context.Context, d *daemon) error {
		nacks.Nacks = []*pb.Nack{{ClaimId: claims[1], Fatal: true, Error: "no use"}}
		_, err := d.messages.NackMessages(inOdds(ctx, "answerer"), nacks)
		return err
	}, func(ctx context.Context, d *daemon) error {
		releases.Ids = claims[2:3]
		_, err := d.messages.ReleaseClaims(inOdds(ctx, "answerer"), releases)
		return err
	})
}

// holds acquires a lock and a token, and passes or releases them.
func holds() []job {
	acquires := &pb.AcquireLocksRequest{RequestId: requestID(), Paths: []string{"src/**"}, Mode: pb.LockMode_LOCK_MODE_EXCLUSIVE}
	releases := &pb.ReleaseLocksRequest{RequestId: requestID(), All: true}
	takes := &pb.AcquireTokenRequest{RequestId: requestID(), Type: "turn", Scope: "build"}
	passes := &pb.PassTokenRequest{RequestId: requestID(), Type: "turn", Scope: "build", To: &pb.PassTokenRequest_Agent{Agent: "answerer"}}
	return []job{func(ctx context.Context, d *daemon) error {
		_, err := d.locks.AcquireLocks(inOdds(ctx, "asker"), acquires)
		return err
	}, func(ctx context.Context, d *daemon) error {
		_, err := d.tokens.AcquireToken(inOdds(ctx, "asker"), takes)
		return err
	}, func(ctx context.Context, d *daemon) error {
		_, err := d.tokens.PassToken(inOdds(ctx, "asker"), passes)
		return err
	}, func(ctx context.Context, d *daemon) error {
		_, err := d.locks.ReleaseLocks(inOdds(ctx, "asker"), releases)
		return err
	}}
}

// keys counts in a key, and publishes events.
func (s *script) keys() []job {
	var steps []job
	for i := range int64(3) {
		puts := &pb.PutStateRequest{RequestId: requestID(), Key: "counter", Value: &pb.StateValue{Value: &pb.StateValue_IntegerValue{IntegerValue: i + 1}}}
		publishes := &pb.PublishEventRequest{RequestId: requestID(), Type: "script.step", Summary: fmt.Sprintf("step %d", i)}
		steps = append(steps, func(ctx context.Context, d *daemon) error {
			_, err := d.state.PutState(inOdds(ctx, "asker"), puts)
			if err == nil {
				s.state = i + 1
			}
			return err
		}, func(ctx context.Context, d *daemon) error {
			_, err := d.events.PublishEvent(inOdds(ctx, "asker"), publishes)
			return err
		})
	}
	return steps
}

// events returns what the log of the script's session has: the type and source of each event.
func (s *script) events(ctx context.Context, d *daemon) ([]string, error) {
	var all []string
	err := listEvents(inOdds(ctx, ""), d, func(e *pb.Event) {
		if e.GetCategory() != pb.EventCategory_EVENT_CATEGORY_SYSTEM {
			all = append(all, e.GetType()+" "+e.GetSource())
		}
	})
	return all, err
}

// verify compares the contents of the finished script's session with what it has done.
func (s *script) verify(ctx context.Context, d *daemon) error {
	for i, want := range []pb.DeliveryState{
		pb.DeliveryState_DELIVERY_STATE_ACKED, pb.DeliveryState_DELIVERY_STATE_DEAD, pb.DeliveryState_DELIVERY_STATE_PENDING,
	} {
		got, err := d.messages.GetMessage(inOdds(ctx, ""), &pb.GetMessageRequest{Id: s.sent[fmt.Sprintf("letter %d", i)]})
		if err != nil {
			return err
		}
		if deliveries := got.GetDeliveries(); len(deliveries) != 1 || deliveries[0].GetState() != want {
			return fmt.Errorf("letter %d is %v, want %v", i, got, want)
		}
	}
	entry, err := d.state.GetState(inOdds(ctx, "asker"), &pb.GetStateRequest{Key: "counter"})
	if err != nil {
		return err
	}
	if got := entry.GetEntry(); got.GetVersion() != s.state || got.GetValue().GetIntegerValue() != s.state {
		return fmt.Errorf("the counter is %v, want %d", got, s.state)
	}
	token, err := d.tokens.GetToken(inOdds(ctx, "asker"), &pb.GetTokenRequest{Type: "turn", Scope: "build"})
	if err != nil {
		return err
	}
	if token.GetToken().GetAgent() != "answerer" {
		return fmt.Errorf("the token is %v", token)
	}
	locks, err := d.locks.ListLocks(inOdds(ctx, "asker"), &pb.ListLocksRequest{})
	if err == nil && len(locks.GetLocks()) > 0 {
		err = fmt.Errorf("locks are held: %v", locks)
	}
	if err != nil {
		return err
	}
	return s.odds.verify(ctx, d)
}
