package crashtest_test

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// slowClaim is how long the claims of the slow consumer last.
const slowClaim = time.Second

// A slowConsumer takes short claims and acks them early, late, or too late.
type slowConsumer struct {
	record *record
	holder holder
	random *rand.Rand
	works  map[*claim]time.Time // until when
}

func newSlowConsumer(r *record, random *rand.Rand) *slowConsumer {
	return &slowConsumer{record: r, holder: holder{slowAgent, "slow"}, random: random, works: map[*claim]time.Time{}}
}

// makeUp has nothing to do: an ack is simply made again, twice is fine.
func (s *slowConsumer) makeUp(context.Context, *daemon) error { return nil }

func (s *slowConsumer) load(ctx context.Context, d *daemon) error {
	for {
		answer, err := d.messages.ClaimMessages(as(ctx, s.holder.agent), &pb.ClaimMessagesRequest{
			Consumer: s.holder.consumer,
			Max:      int32(min(20, s.record.holds(s.holder)+2)),
			ClaimFor: durationpb.New(slowClaim),
		})
		if err != nil {
			return err
		}
		for _, c := range took(s.record, s.holder, answer) {
			if _, known := s.works[c]; !known {
				s.works[c] = time.Now().Add(time.Duration(s.random.IntN(4500)) * time.Millisecond)
			}
		}
		if err := s.ack(ctx, d, time.Now()); err != nil {
			return err
		}
		pause(ctx, 15*time.Millisecond)
	}
}

// ack acks what it has worked on until now.
func (s *slowConsumer) ack(ctx context.Context, d *daemon, now time.Time) error {
	for c, until := range s.works {
		if until.After(now) {
			continue
		}
		s.record.ask(acked, []*claim{c}, false)
		_, err := d.messages.AckMessages(as(ctx, s.holder.agent), &pb.AckMessagesRequest{Ids: []string{c.id}})
		switch {
		case err == nil:
			s.record.done([]*claim{c})
		case cut(err):
			return err
		case reason(err) == "CLAIM_LOST":
			s.record.gone(c)
		default:
			s.record.wrong("the late ack of %s was refused: %v", c.id, err)
		}
		delete(s.works, c)
	}
	return nil
}

// reason is that of an error of the broker.
func reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}
