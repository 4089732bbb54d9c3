package mcp

import (
	"context"
	"slices"

	pb "brokerd/gen/brokerd/v1"
)

const mostMarks = 10 // that one SettleOffers takes

// An offerState says what is known of the offer that a call makes with its mark.
type offerState int

const (
	noOffer      offerState = iota
	perhapsOffer            // it was asked for, and its answer has not come
	shownOffer              // its messages are in the result
)

// A shownTo names who reads a result.
type shownTo struct {
	agent   string
	session string // of the coding agent; "" = unknown
}

// asks notes that the call makes an offer.
func (o *offerState) asks() { *o = perhapsOffer }

// shows notes what has come of the offer: n messages and notices.
func (o *offerState) shows(n int) {
	if *o = noOffer; n > 0 {
		*o = shownOffer
	}
}

// endOffer ends the offer of a call whose result is returned now. The next call accepts it, unless the client does not
// get the result or, if it is cut, perhaps not all messages. Otherwise they are unread again.
func endOffer(c *call, cut bool) {
	why := "the client has not received the result"
	switch {
	case c.offer == noOffer:
		return
	case c.offer == shownOffer && cut:
		why = "the result was too long to show all of it"
	case c.offer == shownOffer && c.ctx.Err() == nil && !c.agent.Gone():
		c.server.returned(c.to, c.mark)
		return
	}
	returnOffer(c, why)
}

// returnOffer returns what the call has offered, also after the end of the call's context. If that fails, it returns by
// itself after a minute.
func returnOffer(c *call, why string) {
	ctx, cancel := context.WithTimeout(afterwards(c.ctx), settleTime)
	defer cancel()
	_, _ = c.api.SettleOffers(ctx, &pb.SettleOffersRequest{
		Marks: []string{c.mark}, Outcome: &pb.SettleOffersRequest_Returned{Returned: why},
	})
	c.offer = noOffer
}

// acceptOffers accepts what earlier results have shown: that the model continues shows that it got them. If that
// fails, the call itself still has its time, and the offers return by themselves or the next call accepts them.
func acceptOffers(c *call) {
	r := &pb.SettleOffersRequest{
		Harness: c.server.Harness, Ways: []pb.OfferWay{pb.OfferWay_OFFER_WAY_MCP}, Open: true,
		Outcome: &pb.SettleOffersRequest_Accepted{Accepted: true},
	}
	if !c.server.Shared {
		if r.Marks = c.server.takeShown(c.to); len(r.Marks) == 0 {
			return
		}
	}
	ctx, cancel := context.WithTimeout(c.ctx, settleTime)
	defer cancel()
	if _, err := c.api.SettleOffers(ctx, r); err != nil {
		c.server.returned(c.to, r.Marks...)
	}
}

// returned notes the marks of results that are returned, the newest mostMarks.
func (s *toolServer) returned(to shownTo, marks ...string) {
	if s.Shared {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Concat(marks, s.shown[to])
	s.shown[to] = all[:min(len(all), mostMarks)]
}

// takeShown returns the noted marks, and forgets them.
func (s *toolServer) takeShown(to shownTo) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	marks := s.shown[to]
	delete(s.shown, to)
	return marks
}

// afterwardsKey is the key of a context whose call outlives that of the tool.
type afterwardsKey struct{}

// afterwards returns a context of a call of a tool for what is left to do after its end.
func afterwards(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), afterwardsKey{}, true)
}

// Afterwards reports whether a call of the broker is made although the client may no longer wait for the call of
// the tool.
func Afterwards(ctx context.Context) bool { return ctx.Value(afterwardsKey{}) != nil }
