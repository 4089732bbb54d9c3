package messagesrpc

import (
	"cmp"
	"context"
	"fmt"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/offers"
	"brokerd/internal/validate"
)

// Limits of offers.
const (
	defaultOffer = 10  // messages
	maxHarness   = 128 // bytes
	minMark      = 8
	maxMark      = 64
)

// OfferMessages implements the RPC.
func (s *Service) OfferMessages(ctx context.Context, r *pb.OfferMessagesRequest) (*pb.OfferMessagesResponse, error) {
	var c validate.Check
	checkMark(&c, "mark", r.Mark)
	if err := c.Err(); err != nil {
		return nil, err
	}
	o := offers.Request{
		Offering: mail.Offering{Way: mail.Way(r.Way), Harness: r.Harness, Mark: r.Mark},
		Limit:    cmp.Or(int(r.Limit), defaultOffer),
		Bytes:    cmp.Or(int(r.MaxBytes), mail.MaxAnswer),
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

// noticeOffer checks to whom a claim offers notices.
func noticeOffer(c *validate.Check, o *pb.NoticeOffer) *mail.Offering {
	if pb.OfferWay_name[int32(o.Way)] == "" || o.Way == pb.OfferWay_OFFER_WAY_UNSPECIFIED {
		c.Fail("offer.way", "is %d, which is no way of an offer", o.Way)
	}
	c.Line("offer.harness", o.Harness, maxHarness)
	if o.Harness == "" {
		c.Fail("offer.harness", "is empty; the session of the coding agent is required")
	}
	checkMark(c, "offer.mark", o.Mark)
	return &mail.Offering{Way: mail.Way(o.Way), Harness: o.Harness, Mark: o.Mark}
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
	for i, mark := range r.Marks {
		checkMark(&c, fmt.Sprintf("marks[%d]", i), mark)
	}
	for _, w := range r.Ways {
		o.Ways = append(o.Ways, mail.Way(w))
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
	if err := c.Err(); err != nil {
		return nil, err
	}
	n, revision, err := s.offers.Settle(ctx, identity.FromContext(ctx), o)
	if err != nil {
		return nil, err
	}
	return &pb.SettleOffersResponse{Settled: int32(n), Revision: revision}, nil
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
