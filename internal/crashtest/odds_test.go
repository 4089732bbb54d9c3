package crashtest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// oddSession is where everything is done that is done seldom: asking, cancelling, purging, going.
const oddSession = "odds"

// An oddJobber makes the calls that are rare: it asks, withdraws, dead-letters and purges messages to agents that come
// and go, and opens and settles every kind of joint work. Every call that changes something has a request id. The
// oddJobber repeats it until it is answered, so that each job is done exactly once.
type oddJobber struct {
	record    *record
	random    *rand.Rand
	number    int
	open      []job           // still to be done; what came of the first may be unknown
	cancelled map[string]bool // messages
	purged    map[string]bool
	gone      map[string]string // mail of agents that have gone
	replies   int
	checks    []check
}

// A job is one call.
type job func(ctx context.Context, d *daemon) error

func newOddJobber(r *record, random *rand.Rand) *oddJobber {
	return &oddJobber{record: r, random: random, cancelled: map[string]bool{}, purged: map[string]bool{}, gone: map[string]string{}}
}

func registerOdds(ctx context.Context, d *daemon) error {
	_, err := d.sessions.CreateSession(ctx, &pb.CreateSessionRequest{Name: oddSession,
		Settings: &pb.SessionSettings{SendRate: proto.Float64(0), MailboxLimit: proto.Int64(0), BreakerFailures: proto.Int32(0)}})
	for _, name := range []string{"asker", "answerer", "sink"} {
		if err == nil {
			_, err = d.agents.RegisterAgent(inOdds(ctx, name), &pb.RegisterAgentRequest{Role: name, Lease: durationpb.New(24 * time.Hour)})
		}
	}
	return err
}

// inOdds is for calls of an agent, or of an operator if that is empty.
func inOdds(ctx context.Context, agent string) context.Context {
	if agent != "" {
		ctx = as(ctx, agent)
	}
	return metadata.AppendToOutgoingContext(ctx, "brokerd-session", oddSession)
}

// makeUp does what is left of the last job.
func (o *oddJobber) makeUp(ctx context.Context, d *daemon) error {
	for len(o.open) > 0 {
		if err := o.open[0](ctx, d); cut(err) {
			return err
		} else if err != nil {
			o.record.wrong("odd job %d: %v", o.number, err)
		}
		o.open = o.open[1:]
	}
	return nil
}

func (o *oddJobber) load(ctx context.Context, d *daemon) error {
	for {
		o.number++
		kinds := []func() []job{
			o.ask, o.cancel, o.purge, o.leave, o.review, o.block, o.handOver, o.vote, o.upload,
		}
		o.open = kinds[o.number%len(kinds)]()
		if err := o.makeUp(ctx, d); err != nil {
			return err
		}
		breathe(ctx, o.random)
	}
}

// ask asks, and answers itself in the other's name.
func (o *oddJobber) ask() []job {
	subject := fmt.Sprintf("question %d", o.number)
	asks := &pb.AskRequest{RequestId: requestID(), Wait: durationpb.New(time.Minute),
		Message: &pb.Message{Target: toAgent("answerer"), Subject: subject, Type: "question"}}
	claims := &pb.ClaimMessagesRequest{Max: 1, Wait: durationpb.New(time.Minute), ClaimFor: durationpb.New(time.Hour)}
	reply := &pb.ReplyRequest{RequestId: requestID(), Ack: true, Message: &pb.Message{Subject: "re: " + subject, Type: "answer"}}
	replied := false
	return []job{func(ctx context.Context, d *daemon) error {
		asking, cancel := context.WithCancel(ctx)
		defer cancel()
		var asked error
		var ended sync.WaitGroup
		ended.Go(func() {
			var answer *pb.AskResponse
			answer, asked = d.messages.Ask(inOdds(asking, "asker"), asks)
			if asked == nil && answer.GetReply().GetSubject() != "re: "+subject {
				asked = fmt.Errorf("the reply to %q is %v", subject, answer)
			}
		})
		err := o.answer(inOdds(ctx, "answerer"), d, claims, reply, &replied)
		if err != nil {
			cancel()
		}
		ended.Wait()
		if err == nil && asked == nil {
			o.replies++
		}
		if err == nil {
			err = asked
		}
		return err
	}}
}

// answer claims the question and replies to it, unless that is done.
func (o *oddJobber) answer(ctx context.Context, d *daemon, claims *pb.ClaimMessagesRequest, reply *pb.ReplyRequest, replied *bool) error {
	if *replied {
		return nil
	}
	if reply.GetId() == "" {
		claimed, err := d.messages.ClaimMessages(ctx, claims)
		if err != nil {
			return err
		}
		if len(claimed.GetClaims()) != 1 {
			return fmt.Errorf("the question did not come: %v", claimed)
		}
		reply.Id = claimed.GetClaims()[0].GetClaimId()
	}
	_, err := d.messages.Reply(ctx, reply)
	*replied = err == nil
	return err
}

// cancel sends a message and withdraws it.
func (o *oddJobber) cancel() []job {
	var id string
	withdraws := &pb.CancelMessageRequest{RequestId: requestID(), Reason: "not needed any more"}
	return []job{o.send("sink", 3, &id), func(ctx context.Context, d *daemon) error {
		withdraws.Id = id
		answer, err := d.messages.CancelMessage(inOdds(ctx, "asker"), withdraws)
		if err == nil && answer.GetCancelled() != 1 {
			err = fmt.Errorf("%s was not withdrawn: %v", id, answer)
		}
		o.cancelled[id] = err == nil
		return err
	}}
}

// purge sends a message, gives it up for dead, and removes it.
func (o *oddJobber) purge() []job {
	var id string
	dies := &pb.NackMessagesRequest{RequestId: requestID()}
	purges := &pb.PurgeDeadLettersRequest{RequestId: requestID(), Mailbox: "sink"}
	return []job{o.send("sink", 1, &id), func(ctx context.Context, d *daemon) error {
		if dies.Nacks == nil {
			claimed, err := d.messages.ClaimMessages(inOdds(ctx, "sink"), &pb.ClaimMessagesRequest{Max: 1, ClaimFor: durationpb.New(time.Hour)})
			if err != nil {
				return err
			}
			if len(claimed.GetClaims()) != 1 || claimed.GetClaims()[0].GetMessage().GetId() != id {
				return fmt.Errorf("%s did not come: %v", id, claimed)
			}
			dies.Nacks = []*pb.Nack{{ClaimId: claimed.GetClaims()[0].GetClaimId(), Fatal: true, Error: "no use"}}
		}
		_, err := d.messages.NackMessages(inOdds(ctx, "sink"), dies)
		return err
	}, func(ctx context.Context, d *daemon) error {
		purges.Ids = []string{id}
		answer, err := d.messages.PurgeDeadLetters(inOdds(ctx, ""), purges)
		if err == nil && answer.GetPurged() != 1 {
			err = fmt.Errorf("%s was not purged: %v", id, answer)
		}
		o.purged[id] = err == nil
		return err
	}}
}

// leave registers an agent, sends it a message, and has it go.
func (o *oddJobber) leave() []job {
	var id string
	name := fmt.Sprintf("guest-%d", o.number)
	registers, goes := &pb.RegisterAgentRequest{RequestId: requestID(), Role: "guest"}, &pb.DeregisterAgentRequest{RequestId: requestID()}
	return []job{func(ctx context.Context, d *daemon) error {
		_, err := d.agents.RegisterAgent(inOdds(ctx, name), registers)
		return err
	}, o.send(name, 3, &id), func(ctx context.Context, d *daemon) error {
		_, err := d.agents.DeregisterAgent(inOdds(ctx, name), goes)
		o.gone[id] = name
		return err
	}}
}

func (o *oddJobber) send(to string, attempts int32, id *string) job {
	sends := &pb.SendMessagesRequest{RequestId: requestID(), Messages: []*pb.Message{
		{Target: toAgent(to), Subject: fmt.Sprintf("odd job %d", o.number), Type: "work", MaxAttempts: attempts}}}
	return func(ctx context.Context, d *daemon) error {
		answer, err := d.messages.SendMessages(inOdds(ctx, "asker"), sends)
		if err == nil {
			*id = answer.GetResults()[0].GetId()
		}
		return err
	}
}

func toAgent(name string) *pb.Target { return &pb.Target{To: &pb.Target_Agent{Agent: name}} }

// verify looks at everything that was done.
func (o *oddJobber) verify(ctx context.Context, d *daemon) error {
	ctx = inOdds(ctx, "")
	state := func(id string) (*pb.Delivery, error) {
		got, err := d.messages.GetMessage(ctx, &pb.GetMessageRequest{Id: id})
		if err == nil && len(got.GetDeliveries()) != 1 {
			err = fmt.Errorf("%v has not one delivery", got)
		}
		if err != nil {
			return nil, err
		}
		return got.GetDeliveries()[0], nil
	}
	for id := range o.cancelled {
		if got, err := state(id); err != nil || got.GetState() != pb.DeliveryState_DELIVERY_STATE_CANCELLED {
			o.record.wrong("%s was withdrawn, and is %v (%v)", id, got, err)
		}
	}
	for id, name := range o.gone {
		if got, err := state(id); err != nil || got.GetState() != pb.DeliveryState_DELIVERY_STATE_DEAD {
			o.record.wrong("%s was for %s, which has gone, and is %v (%v)", id, name, got, err)
		}
		if _, err := d.agents.GetAgent(ctx, &pb.GetAgentRequest{Name: name}); status.Code(err) != codes.NotFound {
			o.record.wrong("%s has gone, and is still there: %v", name, err)
		}
	}
	for _, c := range o.checks {
		if err := c(ctx, d); err != nil {
			o.record.wrong("%v", err)
		}
	}
	dead, err := d.messages.ListDeadLetters(ctx, &pb.ListDeadLettersRequest{Mailbox: "sink"})
	if len(dead.GetItems()) > 0 {
		o.record.wrong("all was purged, and there is still %v", dead)
	}
	return err
}
