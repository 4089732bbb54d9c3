package messagesrpc

import (
	"context"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/offers"
	"brokerd/internal/validate"
)

// Limits of offers.
const (
	defaultOffer = 10 // messages
	maxOffer     = 100
	maxHarness   = 128 // bytes
	minMark      = 8
	maxMark      = 64
	maxMarks     = 10
	maxWhy       = 256 // bytes
)

// OfferMessages implements the RPC.
func (s *Service) OfferMessages(ctx context.Context, r *pb.OfferMessagesRequest) (*pb.OfferMessagesResponse, error) {
	var c validate.Check
	o := offers.Request{
		Offering: mail.Offering{Way: way(&c, "way", r.Way), Harness: r.Harness, Mark: r.Mark},
		Limit:    int(r.Limit),
		Bytes:    int(r.MaxBytes),
	}
	checkOffering(&c, "", &o.Offering)
	if o.Limit == 0 {
		o.Limit = defaultOffer
	}
	c.Between("limit", int64(o.Limit), 1, maxOffer)
	if o.Bytes == 0 {
		o.Bytes = mail.MaxAnswer
	}
	c.Between("max_bytes", int64(o.Bytes), 1, mail.MaxAnswer)
	if err := c.Err(); err != nil {
		return nil, err
	}
	out, err := s.offers.Offer(ctx, identity.FromContext(ctx), o)
	if err = s.unlessLate(ctx, o.Mark, err); err != nil {
		return nil, err
	}
	answer := &pb.OfferMessagesResponse{Items: inboxItems(out.Items), More: int32(out.More), Revision: out.Revision,
		Attention: pb.Attention(out.Attention)}
	for i := range out.Unsettled {
		answer.Unsettled = append(answer.Unsettled, offerProto(&out.Unsettled[i]))
	}
	return answer, nil
}

// checkOffering checks the session of a coding agent to which messages are offered. in is the path of the fields.
func checkOffering(c *validate.Check, in string, o *mail.Offering) {
	c.Line(in+"harness", o.Harness, maxHarness)
	if o.Harness == "" {
		c.Fail(in+"harness", "is empty; the session of the coding agent is required")
	}
	checkMark(c, in+"mark", o.Mark)
}

// unlessLate returns the error of a call that offers messages. If the caller has given up meanwhile, it takes the
// offers back: the caller never gets them, and a later event of its session would accept them.
func (s *Service) unlessLate(ctx context.Context, mark string, err error) error {
	if err != nil || ctx.Err() == nil {
		return err
	}
	returned := offers.Outcome{Marks: []string{mark}, Why: "its caller had given up before the answer"}
	// An error changes nothing: such offers return by themselves later.
	_, _, _ = s.offers.Settle(context.WithoutCancel(ctx), identity.FromContext(ctx), returned)
	return ctx.Err()
}

// SettleOffers implements the RPC.
func (s *Service) SettleOffers(ctx context.Context, r *pb.SettleOffersRequest) (*pb.SettleOffersResponse, error) {
	var c validate.Check
	o := offers.Outcome{
		Marks: r.Marks, Harness: r.Harness, Accepted: r.GetAccepted(), Why: r.GetReturned(), Open: r.Open,
	}
	c.Line("harness", r.Harness, maxHarness)
	c.Count("marks", len(r.Marks), maxMarks)
	for _, mark := range r.Marks {
		checkMark(&c, "marks", mark)
	}
	c.Count("ways", len(r.Ways), len(pb.OfferWay_name))
	for _, w := range r.Ways {
		o.Ways = append(o.Ways, way(&c, "ways", w))
	}
	if r.Harness == "" && len(r.Marks) == 0 {
		c.Fail("harness", "is empty; the session of the coding agent, or marks, are required")
	}
	switch {
	case r.Outcome == nil:
		c.Fail("accepted", "is missing; either accepted or returned is required")
	case !o.Accepted && o.Why == "":
		c.Fail("returned", "is empty; a reason is required")
	}
	c.Line("returned", o.Why, maxWhy)
	if err := c.Err(); err != nil {
		return nil, err
	}
	n, revision, err := s.offers.Settle(ctx, identity.FromContext(ctx), o)
	if err != nil {
		return nil, err
	}
	return &pb.SettleOffersResponse{Settled: int32(n), Revision: revision}, nil
}

// way checks the way of an offer.
func way(c *validate.Check, field string, w pb.OfferWay) mail.Way {
	if pb.OfferWay_name[int32(w)] == "" || w == pb.OfferWay_OFFER_WAY_UNSPECIFIED {
		c.Fail(field, "is %d, which is no way of an offer", w)
	}
	return mail.Way(w)
}

// checkMark checks the mark of an offer.
func checkMark(c *validate.Check, field, mark string) {
	fits := len(mark) >= minMark && len(mark) <= maxMark
	for i := 0; i < len(mark) && fits; i++ {
		b := mark[i]
		fits = b == '-' || '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
	}
	if !fits {
		c.Fail(field, "%.70q is no mark: %d to %d letters, digits and - are allowed", mark, minMark, maxMark)
	}
}

func offerProto(o *mail.Offer) *pb.Offer {
	return &pb.Offer{
		Number: int32(o.Number), Way: pb.OfferWay(o.Way), Harness: o.Harness, Mark: o.Mark,
		OfferedAt: stamp(o.OfferedAt), AcceptedAt: stamp(o.AcceptedAt), ReturnedAt: stamp(o.ReturnedAt), Why: o.Why,
	}
}
