package crashtest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

const (
	// modelAgent receives its mail by offers alone: no participant claims or follows its mailbox.
	modelAgent = "model"
	// offerTime is how long an offer without evidence stays open.
	offerTime = time.Minute
	// offersKept is the number of offers that a delivery keeps.
	offersKept = 20
	// noEvidence is why the broker returns an offer after offerTime.
	noEvidence = "no evidence within 1m that the text stands in the conversation"
)

// An outcome is what a session has asked for its offer.
type outcome int

const (
	stillOpen outcome = iota
	accepted
	returned
)

// An offer is one attempt to put messages before a model, under one mark. The offerRecord guards it.
type offer struct {
	mark, harness string
	messages      []int64   // of the answer
	began         time.Time // before the call: the offer does not end by itself within offerTime from then
	repeated      bool      // the call was repeated: what has expired since is offered too, and not in the answer
	asked         outcome
	why           string    // it was returned
	confirmed     time.Time // after the call that has settled it; zero = its outcome is unknown
}

// An offerRecord is what the test knows of the offers to modelAgent. Its methods may be called concurrently.
type offerRecord struct {
	*record
	byMark map[string]*offer
	of     map[int64][]*offer  // by message, in the order of the answers
	acked  map[int64]time.Time // after the call that has acknowledged it
}

func newOfferRecord(r *record) *offerRecord {
	return &offerRecord{record: r, byMark: map[string]*offer{}, of: map[int64][]*offer{}, acked: map[int64]time.Time{}}
}

// offering notes an offer that is about to be asked for.
func (r *offerRecord) offering(o *offer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.began = time.Now()
	r.byMark[o.mark] = o
}

// offered compares the answer to an offer with what is known of its messages, and notes it.
func (r *offerRecord) offered(o *offer, answer *pb.OfferMessagesResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, item := range answer.GetItems() {
		wire, d := item.GetMessage(), item.GetDelivery()
		n := wire.GetRevision()
		from := r.messages[wire.GetSubject()]
		switch {
		case from == nil || !slices.Contains(from.expect, modelAgent) || wire.GetPayload() != from.wire.GetPayload():
			r.fault("%s was offered a message that was not sent to it like this: %v", modelAgent, wire)
		case d.GetReadAt() != nil:
			r.fault("%s was offered %s, which is read: %v", modelAgent, from.tag, d)
		case !r.acked[n].IsZero() && r.acked[n].Before(o.began):
			r.fault("%s was offered %s (%d) after its ack was confirmed", modelAgent, from.tag, n)
		}
		for _, before := range r.of[n] {
			switch {
			case before.asked == returned:
				r.counts["offered again"]++
			case before.asked == accepted && !before.confirmed.IsZero() && before.confirmed.Before(o.began):
				r.fault("%s was offered %d as %s although %s was accepted", modelAgent, n, o.mark, before.mark)
			case now.Before(before.began.Add(offerTime)):
				r.fault("%s was offered %d as %s while the offer %s is open", modelAgent, n, o.mark, before.mark)
			default:
				r.counts["offered again without evidence in time"]++
			}
		}
		o.messages = append(o.messages, n)
		r.of[n] = append(r.of[n], o)
	}
}

// settling notes what is about to be asked for some offers.
func (r *offerRecord) settling(offers []*offer, as outcome, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range offers {
		o.asked, o.why = as, why
	}
}

// confirm notes that the offers were settled, except those that the broker may have returned before.
func (r *offerRecord) confirm(offers []*offer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range offers {
		if time.Since(o.began) >= offerTime {
			continue
		}
		o.confirmed = time.Now()
		if o.asked == accepted {
			r.counts["accepted"] += len(o.messages)
		}
	}
}

// acknowledged notes the ack of messages that their agent has read.
func (r *offerRecord) acknowledged(revisions []int64) {
	r.ackMail(modelAgent, texts(revisions), confirmed)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range revisions {
		r.acked[n] = time.Now()
	}
}

// verify compares the offers of a delivery with the record: a confirmed outcome stays, an accepted offer has read the
// message, and nothing is open in the end. Nobody may use the record meanwhile.
func (r *offerRecord) verify(t *truth) {
	for which, d := range t.deliveries {
		if which.mailbox != modelAgent {
			continue
		}
		marks := map[string]*pb.Offer{}
		for _, o := range d.GetOffers() {
			marks[o.GetMark()] = o
			if known := r.byMark[o.GetMark()]; known == nil || known.harness != o.GetHarness() {
				r.fault("%v has an offer that no session has asked for: %v", which, o)
			} else if !slices.Contains(known.messages, which.message) && !r.mortal(which.message) {
				r.fault("%v has an offer that the answer to %s lacks: %v", which, known.mark, known.messages)
			}
			if (o.GetAcceptedAt() == nil) == (o.GetReturnedAt() == nil) {
				r.fault("an offer of %v is not either accepted or returned: %v", which, o)
			}
			if o.GetWhy() == noEvidence {
				r.counts["returned without evidence"]++
				if passed := o.GetReturnedAt().AsTime().Sub(o.GetOfferedAt().AsTime()); passed < offerTime {
					r.fault("an offer of %v was returned after %v: %v", which, passed, o)
				}
			}
			if o.GetAcceptedAt() != nil && !d.GetReadAt().AsTime().Equal(o.GetAcceptedAt().AsTime()) {
				r.fault("%v was read at %v, and its offer accepted: %v", which, d.GetReadAt().AsTime(), o)
			}
		}
		for _, o := range r.of[which.message] {
			got := marks[o.mark]
			switch {
			case got == nil && len(d.GetOffers()) < offersKept:
				r.fault("the offer %s of %v is lost: %v", o.mark, which, d.GetOffers())
			case got == nil || o.confirmed.IsZero():
			case o.asked == accepted && got.GetAcceptedAt() == nil:
				r.fault("the offer %s of %v was accepted, and is %v", o.mark, which, got)
			case o.asked == returned && got.GetReturnedAt() != nil && got.GetWhy() != o.why && got.GetWhy() != noEvidence:
				r.fault("the offer %s of %v was returned (%s), and is %v", o.mark, which, o.why, got)
			}
		}
	}
}

// An offerer is a session of the coding agent of modelAgent. Two of them compete for its mail.
type offerer struct {
	record  *offerRecord
	harness string
	random  *rand.Rand
	number  int
	calls   []func(context.Context, *daemon) error // not answered; makeUp repeats the first
	offered *offer                                 // that is not decided on; nil = none
	left    []*offer                               // that nothing was asked for
	gone    []*offer                               // to sessions that were killed: nothing will be asked for them
	read    []int64                                // accepted and not acknowledged
}

func (s *offerer) makeUp(ctx context.Context, d *daemon) error {
	for len(s.calls) > 0 {
		if err := s.calls[0](as(ctx, modelAgent), d); err != nil {
			if cut(err) {
				return err
			}
			s.record.wrong("%s: %v", s.harness, err)
		}
		s.calls = s.calls[1:]
	}
	return nil
}

// load offers messages and says what becomes of them.
func (s *offerer) load(ctx context.Context, d *daemon) error {
	for {
		if s.offered == nil {
			if s.offered = s.next(); s.random.IntN(20) == 0 {
				s.offered.harness += "-killed"
			}
			s.calls = append(s.calls, s.offer(s.offered, 1+s.random.IntN(12)))
		}
		if err := s.makeUp(ctx, d); err != nil {
			return err
		}
		if s.offered.harness == s.harness {
			s.decide(s.offered)
		} else {
			s.gone = append(s.gone, s.offered)
		}
		s.offered = nil
		if len(s.read) > 20 {
			s.calls = append(s.calls, s.ack(s.read))
			s.read = nil
		}
		if err := s.makeUp(ctx, d); err != nil {
			return err
		}
		breathe(ctx, s.random)
	}
}

func (s *offerer) next() *offer {
	s.number++
	return &offer{mark: fmt.Sprintf("%s-%06d", s.harness, s.number), harness: s.harness}
}

// offer returns the call that offers messages. It can be repeated: the same mark has the same answer.
func (s *offerer) offer(o *offer, limit int) func(context.Context, *daemon) error {
	request := &pb.OfferMessagesRequest{
		Way: pb.OfferWay(1 + s.random.IntN(9)), Harness: o.harness, Mark: o.mark, Limit: int32(limit),
	}
	s.record.offering(o)
	return func(ctx context.Context, d *daemon) error {
		answer, err := d.messages.OfferMessages(ctx, request)
		if err != nil {
			o.repeated = true
			return err
		}
		s.record.offered(o, answer)
		return nil
	}
}

// decide chooses what becomes of an offer by lot.
func (s *offerer) decide(o *offer) {
	if len(o.messages) == 0 && !o.repeated {
		return
	}
	mark := &pb.SettleOffersRequest{Marks: []string{o.mark}}
	all := &pb.SettleOffersRequest{Harness: s.harness}
	switch n := s.random.IntN(100); {
	case n < 35:
		s.accept(mark, o)
	case n < 60:
		s.giveBack(mark, o)
	case n < 67:
		s.accept(all, append(s.left, o)...)
		s.left = nil
	case n < 74:
		s.giveBack(all, append(s.left, o)...)
		s.left = nil
	case n < 82 && len(o.messages) > 0: // its text was seen in another way
		s.left = append(s.left, o)
		s.calls = append(s.calls, s.ack(o.messages))
	default:
		s.left = append(s.left, o)
	}
}

func (s *offerer) accept(request *pb.SettleOffersRequest, offers ...*offer) {
	request.Outcome = &pb.SettleOffersRequest_Accepted{Accepted: true}
	s.settle(request, offers, accepted, "")
	for _, o := range offers {
		s.read = append(s.read, o.messages...)
	}
}

func (s *offerer) giveBack(request *pb.SettleOffersRequest, offers ...*offer) {
	why := fmt.Sprintf("return %d of %s", s.number, s.harness)
	request.Outcome = &pb.SettleOffersRequest_Returned{Returned: why}
	s.settle(request, offers, returned, why)
}

// settle adds the call that settles offers. If they are young, it settles all their messages, unless an earlier attempt
// at the call has done so.
func (s *offerer) settle(request *pb.SettleOffersRequest, offers []*offer, as outcome, why string) {
	first, exact, want := true, true, 0
	for _, o := range offers {
		want += len(o.messages)
		exact = exact && !o.repeated
	}
	s.calls = append(s.calls, func(ctx context.Context, d *daemon) error {
		s.record.settling(offers, as, why)
		answer, err := d.messages.SettleOffers(ctx, request)
		young := time.Since(offers[0].began) < offerTime // also when the broker has settled them
		if err != nil {
			first = false
			return err
		}
		s.record.confirm(offers)
		if n := int(answer.GetSettled()); young && (first && n < want || exact && n > want) {
			s.record.wrong("%s settled %d messages of %d: %v", s.harness, n, want, request)
		}
		return nil
	})
}

// ack returns the call that acknowledges messages.
func (s *offerer) ack(revisions []int64) func(context.Context, *daemon) error {
	request := &pb.AckMessagesRequest{RequestId: requestID(), Ids: texts(revisions)}
	return func(ctx context.Context, d *daemon) error {
		s.record.ackMail(modelAgent, request.GetIds(), unknown)
		_, err := d.messages.AckMessages(ctx, request)
		if err == nil {
			s.record.acknowledged(revisions)
		}
		return err
	}
}

// texts returns revisions as the ids of messages.
func texts(revisions []int64) []string {
	all := make([]string, len(revisions))
	for i, n := range revisions {
		all[i] = strconv.FormatInt(n, 10)
	}
	return all
}

// finish returns the offers that are open.
func (s *offerer) finish(ctx context.Context, d *daemon) error {
	switch {
	case s.offered == nil:
	case s.offered.harness == s.harness:
		s.left = append(s.left, s.offered)
	default:
		s.gone = append(s.gone, s.offered)
	}
	for _, offers := range [][]*offer{s.left, s.gone} {
		if len(offers) > 0 {
			s.giveBack(&pb.SettleOffersRequest{Harness: offers[0].harness}, offers...)
		}
	}
	return s.makeUp(ctx, d)
}

// empty offers, accepts and acknowledges what remains. It wants exactly the messages that were neither accepted nor
// acknowledged to be unread, and each of them to be offered.
func (r *offerRecord) empty(ctx context.Context, d *daemon, random *rand.Rand) error {
	unread, read, err := r.compare(ctx, d)
	if err != nil {
		return err
	}
	s := &offerer{record: r, harness: "session-last", random: random, read: read}
	for more := true; more; {
		o := s.next()
		s.calls = append(s.calls, s.offer(o, 100))
		if err := s.makeUp(ctx, d); err != nil {
			return err
		}
		if more = len(o.messages) > 0; more {
			s.accept(&pb.SettleOffersRequest{Marks: []string{o.mark}}, o)
		}
		for ; len(s.read) > 0; s.read = s.read[min(len(s.read), 500):] {
			s.calls = append(s.calls, s.ack(s.read[:min(len(s.read), 500)]))
		}
		if err := s.makeUp(ctx, d); err != nil {
			return err
		}
		for _, n := range o.messages {
			delete(unread, n)
		}
	}
	for n := range unread {
		if !r.mortal(n) {
			r.wrong("%s has the unread message %d, which is not offered", modelAgent, n)
		}
	}
	return r.await(ctx, time.Now().Add(inTime), func() (bool, error) { // the others expire
		left, err := r.inbox(ctx, d)
		return len(left) == 0, err
	})
}

// compare compares the mailbox with the record. It returns the messages that are unread, and those that are read and
// not acknowledged.
func (r *offerRecord) compare(ctx context.Context, d *daemon) (unread map[int64]bool, read []int64, err error) {
	var found map[int64]*pb.Delivery
	missing := func() (all []int64) {
		for n, m := range r.byRevision {
			_, gone := r.mail[delivery{n, modelAgent}]
			gone = gone || r.mortal(n) || m.wire.GetOrderingKey() != "" // an earlier message may hide it
			if slices.Contains(m.expect, modelAgent) && !gone && found[n] == nil {
				all = append(all, n)
			}
		}
		return all
	}
	err = r.await(ctx, time.Now().Add(inTime), func() (bool, error) { // what is delayed comes
		found, err = r.inbox(ctx, d)
		return len(missing()) == 0, err
	})
	if err != nil {
		return nil, nil, err
	}
	for _, n := range missing() {
		r.wrong("message %d to %s is lost", n, modelAgent)
	}
	unread = map[int64]bool{}
	for n, d := range found {
		was := slices.ContainsFunc(r.of[n], func(o *offer) bool { return o.asked == accepted })
		if is := d.GetReadAt() != nil; is != was {
			r.wrong("%d was accepted: %t, and it is read: %t", n, was, is)
		}
		if d.GetReadAt() == nil {
			unread[n] = true
		} else {
			read = append(read, n)
		}
	}
	return unread, read, nil
}

// mortal reports whether a message may expire.
func (r *offerRecord) mortal(n int64) bool {
	m := r.byRevision[n]
	return m != nil && m.wire.GetTtl() != nil
}

// inbox returns the unfinished messages of modelAgent.
func (r *offerRecord) inbox(ctx context.Context, d *daemon) (map[int64]*pb.Delivery, error) {
	found := map[int64]*pb.Delivery{}
	request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX, PageSize: 1000}
	for {
		page, err := d.messages.ListMessages(as(ctx, modelAgent), request)
		if err != nil {
			return nil, err
		}
		for _, item := range page.GetItems() {
			found[item.GetMessage().GetRevision()] = item.GetDelivery()
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return found, nil
		}
	}
}

// awaitReturn waits until the broker has returned an offer of the session for want of evidence.
func (s *offerer) awaitReturn(ctx context.Context, d *daemon) error {
	r := s.record
	i := slices.IndexFunc(s.gone, func(o *offer) bool {
		return slices.ContainsFunc(o.messages, func(n int64) bool { return !r.mortal(n) })
	})
	if i < 0 {
		return nil
	}
	open := true
	err := r.await(ctx, s.gone[i].began.Add(offerTime+inTime), func() (bool, error) {
		left, err := r.inbox(ctx, d)
		open = slices.ContainsFunc(s.gone[i].messages, func(n int64) bool { return isOpen(left[n], s.gone[i].mark) })
		return !open, err
	})
	if open {
		r.wrong("the offer %s is open after %v", s.gone[i].mark, time.Since(s.gone[i].began))
	}
	return err
}

// isOpen reports whether a delivery has an offer with a mark. Deliveries in lists have only their open offers.
func isOpen(d *pb.Delivery, mark string) bool {
	return slices.ContainsFunc(d.GetOffers(), func(o *pb.Offer) bool { return o.GetMark() == mark })
}

// await calls a condition until it is true, at most until a time.
func (r *offerRecord) await(ctx context.Context, until time.Time, condition func() (bool, error)) error {
	for ; ; pause(ctx, 20*time.Millisecond) {
		if done, err := condition(); done || err != nil || time.Now().After(until) {
			return err
		}
	}
}
