package broker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// The model does not say which of several streams receives a delivery. It takes over what the broker says, and checks
// that the stream may have the delivery, that it holds no more than it may, that the delivery has not overtaken another
// one, and that no delivery is left for a stream that has capacity.

// A streamName names the stream of an agent's consumer.
type streamName struct{ agent, consumer string }

// An open stream is a stream of a history.
type openStream struct {
	wish
	capacity int // claims at the same time
	end      context.CancelFunc
	stream   pb.MessageService_ClaimClient

	known map[string]bool // the claims that the model knows to be, or to have been, the stream's

	mu      sync.Mutex
	got     map[string]bool // the claims that the client has received
	answers []*frameAnswer
	doubled string // a claim that came twice
	over    chan struct{}
}

// A frameAnswer gets the results of a frame.
type frameAnswer struct {
	missing int
	results []*pb.SettleResult
	done    chan struct{} // closed when all are there, or the stream has ended
}

// takes reports whether a delivery is for the stream.
func (s *openStream) takes(m *model, p *parcel) bool {
	return slices.Contains(m.reachable(s.agent), p.box) && !(p.queue() && p.sender == s.agent) && p.priority >= s.lowest &&
		(len(s.kinds) == 0 || slices.Contains(s.kinds, p.kind))
}

// stream returns the open stream that holds a delivery, nil if none does.
func (h *history) stream(p *parcel) *openStream {
	if !p.claimed() {
		return nil
	}
	return h.streams[streamName{p.holder, p.consumer}]
}

// holds returns the deliveries that a stream has.
func (h *history) holds(s *openStream) []*parcel {
	return h.m.where(func(p *parcel) bool { return h.stream(p) == s })
}

func (h *history) openStream(t *rapid.T) {
	s := &openStream{
		wish: wish{
			agent: someAgents.Draw(t, "agent"), consumer: oneOf([]string{"stream", "stream-2"}).Draw(t, "consumer"),
			kinds:  oneOf([][]string{nil, nil, {"message"}, {"work"}}).Draw(t, "types"),
			lowest: oneOf([]int{0, 0, 0, 6}).Draw(t, "lowest priority"),
			most:   numbers(1, 10).Draw(t, "max_in_flight"), lasts: someClaims.Draw(t, "claim_for"),
		},
		known: map[string]bool{}, got: map[string]bool{}, over: make(chan struct{}),
	}
	if !h.m.registered(s.agent) {
		t.Skip("the agent is not registered")
	}
	if s.lasts == 0 {
		s.lasts = 30 * time.Second
	}
	open := &pb.ClaimOpen{
		Consumer: s.consumer, Types: s.kinds, LowestPriority: int32(s.lowest), MaxInFlight: int32(s.most),
		ClaimFor: durationpb.New(s.lasts), MaxTotal: durationpb.New(s.lasts),
	}
	s.capacity = s.most
	if numbers(0, 3).Draw(t, "bytes") == 0 {
		open.MaxBytes, s.capacity = 1, 1 // every message has more
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s.end = cancel
	var err error
	s.stream, err = pb.NewMessageServiceClient(h.Conn(s.agent)).Claim(ctx)
	if err == nil {
		err = s.stream.Send(&pb.ClaimRequest{Open: open})
	}
	var first *pb.ClaimResponse
	if err == nil {
		first, err = s.stream.Recv()
	}
	refuses(t, err, codes.OK, "")
	name := streamName{s.agent, s.consumer}
	if old := h.streams[name]; old != nil {
		<-old.over
	}
	h.streams[name] = s
	resumed := first.GetOpened().GetResumed()
	held := h.holds(s)
	if len(resumed) != len(held) {
		t.Fatalf("the broker says %d claims are resumed; the model %d", len(resumed), len(held))
	}
	for i, p := range held {
		if resumed[i].ClaimId != p.claimID() {
			t.Fatalf("claim %d that is resumed is %s; the model says %s", i, resumed[i].ClaimId, p.claimID())
		}
		p.until = h.m.now.Add(s.lasts)
		s.known[p.claimID()], s.got[p.claimID()] = true, true
	}
	go s.read()
}

// read takes the frames of the stream until it ends.
func (s *openStream) read() {
	defer close(s.over)
	for {
		r, err := s.stream.Recv()
		s.mu.Lock()
		if err != nil {
			for _, a := range s.answers {
				close(a.done)
			}
			s.answers = nil
			s.mu.Unlock()
			return
		}
		for _, c := range r.GetDeliver().GetClaims() {
			if s.got[c.ClaimId] {
				s.doubled = c.ClaimId
			}
			s.got[c.ClaimId] = true
		}
		for _, result := range r.GetResults().GetResults() {
			a := s.answers[0]
			a.results = append(a.results, result)
			if a.missing--; a.missing == 0 {
				close(a.done)
				s.answers = s.answers[1:]
			}
		}
		s.mu.Unlock()
	}
}

// closeStream ends one of the streams.
func (h *history) closeStream(t *rapid.T) {
	if len(h.streams) == 0 {
		t.Skip("there is no stream")
	}
	s := h.streams[oneOf(h.streamNames()).Draw(t, "stream")]
	h.closeStreams(t, func(o *openStream) bool { return o == s })
}

// streamNames returns the names of the streams in one order.
func (h *history) streamNames() []streamName {
	var names []streamName
	for name := range h.streams {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b streamName) int {
		return slices.Compare([]string{a.agent, a.consumer}, []string{b.agent, b.consumer})
	})
	return names
}

// closeStreams ends streams and returns when the broker knows of their ends. What they hold lasts for claim_for again.
func (h *history) closeStreams(t *rapid.T, which func(*openStream) bool) {
	for name, s := range h.streams {
		if !which(s) {
			continue
		}
		for _, p := range h.holds(s) {
			p.until = h.m.now.Add(s.lasts)
		}
		s.end()
		<-s.over
		delete(h.streams, name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	defer cancel()
	for {
		out, err := call(h, "", pb.NewAdminServiceClient, pb.AdminServiceClient.GetStatus, &pb.GetStatusRequest{})
		refuses(t, err, codes.OK, "")
		if int(out.Streams) == len(h.streams) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%d streams are open, not %d", out.Streams, len(h.streams))
		}
	}
}

// streamAck acknowledges claims over the stream that holds them.
func (h *history) streamAck(t *rapid.T) {
	held := h.m.where(func(p *parcel) bool { return h.stream(p) != nil })
	if len(held) == 0 {
		t.Skip("no stream has a claim")
	}
	s := h.stream(oneOf(held).Draw(t, "claim of the stream"))
	held = h.holds(s)
	var acks []string
	var names []naming
	for range numbers(1, 3).Draw(t, "acks") {
		p := oneOf(held).Draw(t, "delivery")
		acks = append(acks, p.claimID())
		names = append(names, naming{p.claimID(), p.message, p.claims})
	}
	results, err := perform(h, func() ([]*pb.SettleResult, error) { return s.settle(&pb.ClaimRequest{Acks: acks}, len(acks)) })
	refuses(t, err, codes.OK, "")
	for i, r := range results {
		if _, refused := h.m.ack(s.agent, names[i]); r.ClaimId != acks[i] || r.GetError().GetReason() != refused {
			t.Fatalf("ack of %s over a stream: the broker says %v; the model %q", acks[i], r, refused)
		}
		h.m.look()
	}
}

// settle sends a frame and returns its results.
func (s *openStream) settle(r *pb.ClaimRequest, n int) ([]*pb.SettleResult, error) {
	a := &frameAnswer{missing: n, done: make(chan struct{})}
	s.mu.Lock()
	s.answers = append(s.answers, a)
	s.mu.Unlock()
	if err := s.stream.Send(r); err != nil {
		return nil, err
	}
	<-a.done
	if a.missing > 0 {
		return nil, errors.New("the stream has ended")
	}
	return a.results, nil
}

// adopt takes over which deliveries the streams have received. It returns what is not in order yet, or never will be.
func (h *history) adopt() error {
	for _, p := range h.m.where(func(p *parcel) bool { return h.m.state(p) == pending }) {
		if !slices.ContainsFunc(h.streamList(), func(s *openStream) bool { return s.takes(h.m, p) }) {
			continue
		}
		out, err := call(h, "", pb.NewMessageServiceClient, pb.MessageServiceClient.GetMessage, &pb.GetMessageRequest{Id: p.id})
		if err != nil {
			return err
		}
		for _, d := range out.Deliveries {
			s := h.streams[streamName{d.Holder, d.Consumer}]
			if d.Mailbox != p.box || d.State != claimed || s == nil || d.ClaimId != fmt.Sprintf("%d.%d", p.message, p.claims+1) {
				continue
			}
			if !s.takes(h.m, p) {
				return fmt.Errorf("stream %v has %s, which is not for it", s.wish, d.ClaimId)
			}
			p.state, p.holder, p.consumer, p.due = claimed, s.agent, s.consumer, time.Time{}
			p.claims++
			p.lasts, p.until, p.visible = s.lasts, h.m.now.Add(s.lasts), true
			s.known[d.ClaimId] = true
			h.adopted = append(h.adopted, p)
		}
	}
	for _, s := range h.streamList() {
		if err := h.streamDiffers(s); err != nil {
			return err
		}
	}
	return h.overtaken()
}

func (h *history) streamList() []*openStream {
	var list []*openStream
	for _, name := range h.streamNames() {
		list = append(list, h.streams[name])
	}
	return list
}

// streamDiffers returns in what a stream differs from what it should have.
func (h *history) streamDiffers(s *openStream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubled != "" {
		return fmt.Errorf("stream %v has received %s twice", s.wish, s.doubled)
	}
	for id := range s.known {
		if !s.got[id] {
			return fmt.Errorf("stream %v has not received %s", s.wish, id)
		}
	}
	for id := range s.got {
		if !s.known[id] {
			return fmt.Errorf("stream %v has received %s, which is not claimed for it", s.wish, id)
		}
	}
	held := h.holds(s)
	got := slices.ContainsFunc(held, func(p *parcel) bool { return slices.Contains(h.adopted, p) })
	if got && len(held) > s.capacity {
		return fmt.Errorf("stream %v has %d claims", s.wish, len(held))
	}
	if len(held) >= s.capacity {
		return nil
	}
	for _, p := range h.m.parcels {
		if h.m.state(p) == pending && s.takes(h.m, p) {
			return fmt.Errorf("stream %v waits, and %#v is ready for it", s.wish, p)
		}
	}
	return nil
}

// before reports whether a delivery is ready and has a place before another one of its mailbox.
func (h *history) before(o, p *parcel) bool {
	return o.box == p.box && h.m.state(o) == pending &&
		(h.m.rank(o) < h.m.rank(p) || h.m.rank(o) == h.m.rank(p) && o.message < p.message)
}

// overtaken returns an error if a stream has received a delivery since the last look although another one in the mailbox,
// which it takes, has a place before it and was ready all the time, or since before the delivery was sent.
func (h *history) overtaken() error {
	for _, p := range h.adopted {
		s := h.stream(p)
		for _, o := range slices.Concat(h.rested, h.ahead[p]) {
			if s != nil && h.before(o, p) && s.takes(h.m, o) {
				return fmt.Errorf("stream %v has received %#v before %#v", s.wish, p, o)
			}
		}
	}
	return nil
}

// rest waits until the streams have received what they may have.
func (h *history) rest(t *rapid.T) {
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience/2)
	defer cancel()
	for err := h.adopt(); err != nil; err = h.adopt() {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	h.adopted = nil
	clear(h.ahead)
	h.rested = h.m.where(func(p *parcel) bool { return h.m.state(p) == pending })
}
