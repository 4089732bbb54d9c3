package crashtest_test

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// A plan is what a consumer does with the claims that it has.
type plan struct {
	acks, retries, fatals, releases, kept []*claim
}

// planFor decides by lot.
func planFor(random *rand.Rand, claims []*claim) plan {
	var p plan
	for _, c := range claims {
		list := &p.acks
		switch n := random.IntN(100); {
		case n < 10:
			list = &p.retries
		case n < 14:
			list = &p.fatals
		case n < 22:
			list = &p.releases
		case n < 28:
			list = &p.kept
		}
		*list = append(*list, c)
	}
	return p
}

// nacks asks for the nacks of a plan, retries before fatal ones.
func (p *plan) nacks(r *record, random *rand.Rand) []*pb.Nack {
	var all []*pb.Nack
	for i, text := range r.ask(nacked, p.retries, false) {
		n := &pb.Nack{ClaimId: p.retries[i].id, Error: text}
		if random.IntN(20) > 0 { // else the broker's own backoff
			n.Delay = durationpb.New(time.Duration(max(0, random.IntN(120)-40)) * time.Millisecond)
		}
		all = append(all, n)
	}
	for i, text := range r.ask(nacked, p.fatals, true) {
		all = append(all, &pb.Nack{ClaimId: p.fatals[i].id, Error: text, Fatal: true})
	}
	return all
}

func ids(claims []*claim) []string {
	all := make([]string, len(claims))
	for i, c := range claims {
		all[i] = c.id
	}
	return all
}

// A streamConsumer works on a Claim stream.
type streamConsumer struct {
	record *record
	holder holder
	random *rand.Rand
}

// makeUp has nothing to do: the next stream says what is still held.
func (c *streamConsumer) makeUp(context.Context, *daemon) error { return nil }

func (c *streamConsumer) load(ctx context.Context, d *daemon) error {
	stream, err := d.messages.Claim(as(ctx, c.holder.agent))
	if err != nil {
		return err
	}
	open := &pb.ClaimOpen{Consumer: c.holder.consumer, MaxInFlight: int32(8 + c.random.IntN(40)), ClaimFor: durationpb.New(time.Minute)}
	if err := stream.Send(&pb.ClaimRequest{Open: open}); err != nil {
		return err
	}
	var asked []*claim // in the order of their results
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		var claims []*claim
		switch f := answer.GetFrame().(type) {
		case *pb.ClaimResponse_Opened:
			claims = c.record.holding(c.holder, f.Opened.GetResumed(), nil)
		case *pb.ClaimResponse_Deliver:
			claims = c.record.got(c.holder, f.Deliver.GetClaims())
		case *pb.ClaimResponse_Results:
			if asked, claims, err = c.results(asked, f.Results.GetResults()); err != nil {
				return err
			}
		default:
			c.record.wrong("%v was told %v", c.holder, answer)
			continue
		}
		if len(claims) == 0 {
			continue
		}
		request, more := c.settle(claims)
		asked = append(asked, more...)
		if err := stream.Send(request); err != nil {
			return err
		}
	}
}

// settle returns a frame that settles most of the claims, and those in the order of the results.
func (c *streamConsumer) settle(claims []*claim) (*pb.ClaimRequest, []*claim) {
	p := planFor(c.random, claims)
	c.record.ask(acked, p.acks, false)
	c.record.ask(released, p.releases, false)
	request := &pb.ClaimRequest{Acks: ids(p.acks), Nacks: p.nacks(c.record, c.random), Releases: ids(p.releases)}
	for _, k := range p.kept {
		request.Extensions = append(request.Extensions, &pb.Extension{ClaimId: k.id})
	}
	var order []*claim
	for _, part := range [][]*claim{p.acks, p.retries, p.fatals, p.kept, p.releases} {
		order = append(order, part...)
	}
	return request, order
}

// results notes what came of the first of what was asked. It returns the rest, and the claims that were only extended; or
// an error if the broker could not write.
func (c *streamConsumer) results(asked []*claim, results []*pb.SettleResult) (rest, extended []*claim, err error) {
	if len(results) > len(asked) {
		c.record.wrong("%v settled %d claims and was answered %v", c.holder, len(asked), results)
		return nil, nil, nil
	}
	for i, got := range results {
		if err := unavailable(got.GetError()); err != nil {
			return nil, nil, err
		}
		switch {
		case got.GetClaimId() != asked[i].id || got.GetError() != nil:
			c.record.wrong("%v settled %s and was answered %v", c.holder, asked[i].id, got)
		case asked[i].asked == nothing:
			extended = append(extended, asked[i])
		default:
			c.record.done(asked[i : i+1])
		}
	}
	return asked[len(results):], extended, nil
}

// A unaryConsumer claims and settles by unary calls, each settlement with a request id.
type unaryConsumer struct {
	record *record
	holder holder
	random *rand.Rand
	open   *call // what came of it is unknown; nil = nothing is
}

// makeUp settles what was not answered, and then learns what it holds: claims too that were made for a call
// whose answer never came.
func (c *unaryConsumer) makeUp(ctx context.Context, d *daemon) error {
	if err := c.finish(ctx, d, c.open); err != nil {
		return err
	}
	answer, err := d.messages.ClaimMessages(as(ctx, c.holder.agent), &pb.ClaimMessagesRequest{
		Consumer: c.holder.consumer, Max: 1000, Types: []string{"none-that-is-sent"}})
	if err != nil {
		return err
	}
	took(c.record, c.holder, answer)
	return nil
}

func (c *unaryConsumer) load(ctx context.Context, d *daemon) error {
	for {
		held := c.record.holds(c.holder)
		answer, err := d.messages.ClaimMessages(as(ctx, c.holder.agent), &pb.ClaimMessagesRequest{
			Consumer: c.holder.consumer,
			Max:      int32(min(1000, held+1+c.random.IntN(12))),
			Wait:     durationpb.New(20 * time.Millisecond),
			ClaimFor: durationpb.New(time.Minute),
		})
		if err != nil {
			return err
		}
		p := planFor(c.random, took(c.record, c.holder, answer))
		for _, next := range c.calls(&p) {
			c.open = next
			if err := c.finish(ctx, d, next); err != nil {
				return err
			}
		}
	}
}

// took notes the answer to a unary claim.
func took(r *record, h holder, answer *pb.ClaimMessagesResponse) []*claim {
	resumed := 0
	for _, m := range answer.GetClaims() {
		if m.GetResumed() {
			resumed++
		}
	}
	return r.holding(h, answer.GetClaims()[:resumed], answer.GetClaims()[resumed:])
}

// calls carries out a plan, each part by a call of its own.
func (c *unaryConsumer) calls(p *plan) []*call {
	var all []*call
	if len(p.acks) > 0 {
		all = append(all, ackCall(p.acks))
	}
	if len(p.releases) > 0 {
		all = append(all, releaseCall(p.releases))
	}
	if len(p.retries)+len(p.fatals) > 0 {
		all = append(all, nackCall(p, c.record, c.random))
	}
	return all
}

// finish makes a call; nil is none.
func (c *unaryConsumer) finish(ctx context.Context, d *daemon, next *call) error {
	if next == nil {
		return nil
	}
	if !next.asked {
		next.asked = true
		if next.verb != nacked { // those were asked for to get their texts
			c.record.ask(next.verb, next.claims, false)
		}
	}
	err := next.do(as(ctx, c.holder.agent), d)
	switch {
	case err == nil:
		c.record.done(next.claims)
	case cut(err):
		return err
	default:
		c.record.wrong("%v settled %v and was refused: %v", c.holder, ids(next.claims), err)
	}
	c.open = nil
	return nil
}
