package broker_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A taker is an open Claim stream.
type taker struct {
	t      apptest.TB
	stream pb.MessageService_ClaimClient
	end    context.CancelFunc
	opened *pb.ClaimOpened
	got    []*pb.ClaimedMessage // that nobody has asked for yet
}

// taker opens a stream.
func (a *agent) taker(o *pb.ClaimOpen) *taker {
	a.Helper()
	c := a.unopened()
	c.put(&pb.ClaimRequest{Open: o})
	if c.opened = c.recv().GetOpened(); c.opened == nil {
		a.Fatal("the first frame is not opened")
	}
	return c
}

func (a *agent) unopened() *taker {
	a.Helper()
	ctx, end := context.WithCancel(a.Ctx)
	a.Cleanup(end)
	stream, err := a.Claim(ctx)
	apptest.NoError(a, err)
	return &taker{t: a, stream: stream, end: end}
}

func (c *taker) put(r *pb.ClaimRequest) {
	c.t.Helper()
	apptest.NoError(c.t, c.stream.Send(r))
}

func (c *taker) recv() *pb.ClaimResponse {
	c.t.Helper()
	r, err := c.stream.Recv()
	apptest.NoError(c.t, err)
	return r
}

// take waits for n claims. No other frame may come before.
func (c *taker) take(n int) []*pb.ClaimedMessage {
	c.t.Helper()
	for len(c.got) < n {
		r := c.recv()
		if r.GetDeliver() == nil {
			c.t.Fatalf("%v came instead of claims", r)
		}
		c.got = append(c.got, r.GetDeliver().Claims...)
	}
	got := c.got[:n]
	c.got = c.got[n:]
	return got
}

// settle sends a frame and waits for its results. Claims may come in between.
func (c *taker) settle(r *pb.ClaimRequest) []*pb.SettleResult {
	c.t.Helper()
	c.put(r)
	var results []*pb.SettleResult
	for n := len(r.Acks) + len(r.Nacks) + len(r.Extensions) + len(r.Releases); len(results) < n; {
		f := c.recv()
		if f.GetDeliver() == nil && f.GetResults() == nil {
			c.t.Fatalf("%v came instead of results", f)
		}
		c.got = append(c.got, f.GetDeliver().GetClaims()...)
		results = append(results, f.GetResults().GetResults()...)
	}
	return results
}

// ack finishes claims.
func (c *taker) ack(claims ...*pb.ClaimedMessage) {
	c.t.Helper()
	var ids []string
	for _, m := range claims {
		ids = append(ids, m.ClaimId)
	}
	for _, r := range c.settle(&pb.ClaimRequest{Acks: ids}) {
		if r.Error != nil {
			c.t.Fatalf("ack of %s: %v", r.ClaimId, r.Error)
		}
	}
}

// idle makes sure that nothing is handed out for what has happened up to now: it asks twice for something that takes
// its way through the writer.
func (c *taker) idle() {
	c.t.Helper()
	for range 2 {
		c.settle(&pb.ClaimRequest{Acks: []string{"4711000.1"}})
	}
	if len(c.got) > 0 {
		c.t.Fatalf("got %v", subjectsOf(c.got))
	}
}

// revoked waits for a revocation.
func (c *taker) revoked() *pb.ClaimRevoked {
	c.t.Helper()
	r := c.recv()
	if r.GetRevoke() == nil {
		c.t.Fatalf("%v came instead of a revocation", r)
	}
	return r.GetRevoke()
}

// ended waits for the end of the stream and returns its error.
func (c *taker) ended() error {
	c.t.Helper()
	for {
		r, err := c.stream.Recv()
		if err != nil {
			return err
		}
		c.t.Logf("before the end: %v", r)
	}
}

func TestClaimStream_FirstFrameMustOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	c := a.unopened()
	c.put(&pb.ClaimRequest{Acks: []string{"1.1"}})
	apptest.Invalid(t, c.ended(), "open")
	c = a.unopened()
	c.put(&pb.ClaimRequest{Open: &pb.ClaimOpen{}, Acks: []string{"1.1"}})
	apptest.Invalid(t, c.ended(), "open")
	c = a.unopened()
	apptest.NoError(t, c.stream.CloseSend())
	apptest.Invalid(t, c.ended(), "open")
	c = a.taker(&pb.ClaimOpen{})
	c.put(&pb.ClaimRequest{Open: &pb.ClaimOpen{}})
	apptest.Invalid(t, c.ended(), "open")
}

func TestClaimStream_OpenedNamesTheMailboxes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	a.subscribe("news", "beta")
	wantList(t, "all", a.taker(&pb.ClaimOpen{Consumer: "1"}).opened.Mailboxes, "a", "role:builder", "channel:beta", "channel:news")
	some := &pb.ClaimOpen{Consumer: "2", Mailboxes: []string{"channel:news", "a", "channel:news"}}
	wantList(t, "some", a.taker(some).opened.Mailboxes, "channel:news", "a")
}

func TestClaimStream_OthersMailboxesAreDenied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	w.agent("b", "tester").subscribe("news")
	for _, box := range []string{"b", "role:tester", "channel:news", "nobody"} {
		c := a.unopened()
		c.put(&pb.ClaimRequest{Open: &pb.ClaimOpen{Mailboxes: []string{"a", box}}})
		apptest.Refused(t, c.ended(), codes.PermissionDenied, "NOT_YOUR_MAILBOX")
		_, err := a.ClaimMessages(a.Ctx, &pb.ClaimMessagesRequest{Mailboxes: []string{"a", box}})
		apptest.Refused(t, err, codes.PermissionDenied, "NOT_YOUR_MAILBOX")
	}
}

func TestClaimStream_HandsOutWhatIsThereAndWhatComes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.send(to("a", subject("before")))
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 10, Consumer: "x"})
	before := c.take(1)[0]
	want(t, "first", before.Message.Subject, "before")
	want(t, "lasts", before.ExpiresIn.AsDuration(), lease)
	want(t, "consumer", lead.delivery(before.Message.Id).Consumer, "x")
	lead.sendAll(to("a", subject("1")), to("a", subject("2")))
	after := c.take(2)
	wantList(t, "then", subjectsOf(after), "1", "2")
	c.ack(before, after[0], after[1])
	for _, m := range append(after, before) {
		lead.wantState(m.Message.Id, acked)
	}
}

func TestClaimStream_HoldsNoMoreThanMaxInFlight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for i := range 5 {
		a.send(to("a", subject(strconv.Itoa(i))))
	}
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 2})
	got := c.take(2)
	c.idle()
	c.ack(got[0])
	third := c.take(1)
	wantList(t, "after an ack", subjectsOf(third), "2")
	c.settle(&pb.ClaimRequest{Extensions: []*pb.Extension{{ClaimId: got[1].ClaimId}}})
	c.idle()
	c.settle(&pb.ClaimRequest{Nacks: []*pb.Nack{{ClaimId: got[1].ClaimId, Fatal: true}}})
	wantList(t, "after a nack", subjectsOf(c.take(1)), "3")
	c.settle(&pb.ClaimRequest{Releases: []string{third[0].ClaimId}})
	wantList(t, "after a release", subjectsOf(c.take(1)), "2")
	c.idle()
}

func TestClaimStream_OneAtATimeUnlessAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.sendAll(to("a"), to("a"))
	c := a.taker(&pb.ClaimOpen{})
	c.take(1)
	c.idle()
}

func TestClaimStream_HandsOutNothingOnceMaxBytesAreHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	big := func(s string) *pb.Message {
		return to("a", subject(s), func(m *pb.Message) { m.Body = strings.Repeat("x", 60_000) })
	}
	a.sendAll(big("1"), big("2"), big("3"), big("4"))
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 10, MaxBytes: 100_000})
	got := c.take(2)
	c.idle()
	c.ack(got[0])
	wantList(t, "with room", subjectsOf(c.take(1)), "3")
	c.idle()
	tiny := a.taker(&pb.ClaimOpen{MaxInFlight: 10, MaxBytes: 1, Consumer: "tiny"})
	wantList(t, "one is always allowed", subjectsOf(tiny.take(1)), "4")
}

func TestClaimStream_FiltersByTypeAndPriorityBehindADeepBacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	batch := make([]*pb.Message, 1000)
	for i := range batch {
		batch[i] = toRole("builder", kind("noise"), priority(5))
	}
	for range 5 {
		lead.sendAll(batch...)
	}
	lead.sendAll(toRole("builder", kind("work"), priority(3), subject("low")), toRole("builder", kind("work"), priority(5), subject("old")))
	types := &pb.ClaimOpen{Consumer: "types", Types: []string{"other", "work"}, LowestPriority: 4, MaxInFlight: 3}
	c := a.taker(types)
	wantList(t, "there before", subjectsOf(c.take(1)), "old")
	c.idle()
	lead.sendAll(toRole("builder", kind("noise")), toRole("builder", kind("other"), subject("new"), priority(4)), toRole("builder", kind("work"), priority(3)))
	wantList(t, "came then", subjectsOf(c.take(1)), "new")
	c.idle()
	low := a.claimWith(&pb.ClaimMessagesRequest{Types: []string{"work"}, Max: 5}).Claims
	want(t, "priority too low for the stream", len(low), 2)
	a.release(low[0].ClaimId, low[1].ClaimId)
	c.idle()
}

func TestClaimStream_FilteredConsumerGetsWhatWasPutBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	w.agent("lead", "").sendAll(toRole("builder", kind("x"), subject("1")), toRole("builder", kind("y")), toRole("builder", kind("x"), subject("2")))
	one := a.taker(&pb.ClaimOpen{Consumer: "1", Types: []string{"x"}, MaxInFlight: 5})
	got := one.take(2)
	two := a.taker(&pb.ClaimOpen{Consumer: "2", Types: []string{"x"}, MaxInFlight: 1})
	two.idle()
	one.end()
	w.awaitStreams(1)
	a.release(got[1].ClaimId)
	wantList(t, "the later one", subjectsOf(two.take(1)), "2")
	a.release(got[0].ClaimId)
	two.idle()
	two.ack(&pb.ClaimedMessage{ClaimId: rev2(got[1])})
	wantList(t, "the earlier one", subjectsOf(two.take(1)), "1")
}

// Two put back at once, at both ends of a backlog that takes several looks: the far one is still found.
func TestClaimStream_FilteredConsumerGetsWhatLiesBehindADeepBacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	batch := make([]*pb.Message, 1000)
	for i := range batch {
		batch[i] = toRole("builder")
	}
	for range 5 {
		lead.sendAll(batch...)
	}
	lead.send(toRole("builder", kind("work")))
	front := a.claimWith(&pb.ClaimMessagesRequest{Consumer: "1"}).Claims[0]
	far := a.claimWith(&pb.ClaimMessagesRequest{Consumer: "2", Types: []string{"work"}}).Claims[0]
	c := a.taker(&pb.ClaimOpen{Consumer: "3", Types: []string{"work"}})
	c.idle()
	a.release(front.ClaimId, far.ClaimId)
	want(t, "message", c.take(1)[0].Message.Id, far.Message.Id)
}

// rev2 is the id of the second claim of a message.
func rev2(c *pb.ClaimedMessage) string { return strconv.FormatInt(c.Message.Revision, 10) + ".2" }

func TestClaimStream_NeverGetsItsOwnMessagesToOneOfItsKind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", "builder"), w.agent("b", "builder")
	a.subscribe("news")
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 10})
	a.sendAll(toRole("builder", subject("role")), toChannel("news", one))
	c.idle()
	want(t, "a later call", len(a.claimWith(&pb.ClaimMessagesRequest{Consumer: "x", Max: 5}).Claims), 0)
	wantList(t, "the other", subjectsOf(b.claim(5)), "role")
	a.send(to("a", subject("to itself")))
	wantList(t, "its own mailbox", subjectsOf(c.take(1)), "to itself")
}

func TestClaimStream_OneOrderAcrossAllMailboxes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unbroken()
	lead, a := w.agent("lead", ""), w.agent("a", "builder")
	a.subscribe("news")
	lead.sendAll(
		to("a", subject("own 5")), toRole("builder", subject("role 9"), priority(9)), toChannel("news", one, subject("channel 5")),
		to("a", subject("own 8"), priority(8)), toRole("builder", subject("role 5")), toChannel("news", subject("copy 9"), priority(9)),
	)
	order := []string{"role 9", "copy 9", "own 8", "own 5", "channel 5", "role 5"}
	claims := a.claimWith(&pb.ClaimMessagesRequest{Consumer: "call", Max: 10}).Claims
	wantList(t, "a call", subjectsOf(claims), order...)
	for i, box := range []string{"role:builder", "a", "a", "a", "channel:news", "role:builder"} {
		want(t, "mailbox", claims[i].Mailbox, box)
		a.release(claims[i].ClaimId)
	}
	for i, open := range []*pb.ClaimOpen{{}, {Types: []string{"message"}}} {
		c := a.taker(open)
		for _, want := range order {
			got := c.take(1)
			wantList(t, "a stream", subjectsOf(got), want)
			c.settle(&pb.ClaimRequest{Nacks: []*pb.Nack{{ClaimId: got[0].ClaimId, Delay: durationpb.New(time.Minute)}}})
		}
		c.end()
		w.awaitStreams(0)
		w.Clock.Advance(time.Minute)
		w.await("all are back", func() bool { return len(w.Root().Events("message.ready")) == (i+1)*len(order) })
	}
}

func TestClaimStream_ResultsComeInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for range 8 {
		a.send(to("a"))
	}
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 8})
	got := c.take(8)
	id := func(i int) string { return got[i].ClaimId }
	frames := []*pb.ClaimRequest{
		{Releases: []string{id(0)}, Acks: []string{id(1), "4711000.1"}, Nacks: []*pb.Nack{{ClaimId: id(2), Delay: durationpb.New(time.Hour)}},
			Extensions: []*pb.Extension{{ClaimId: id(3)}}},
		{},
		{Acks: []string{id(4), id(4), id(2)}},
		{Releases: []string{id(2), id(5)}},
	}
	wanted := []string{id(1), "4711000.1!", id(2), id(3), id(0), id(4), id(4), id(2), id(2) + "!", id(5)}
	for _, f := range frames {
		c.put(f)
	}
	var ids []string
	for len(ids) < len(wanted) {
		for _, r := range c.recv().GetResults().GetResults() {
			text := r.ClaimId
			if r.Error != nil {
				text += "!"
			}
			ids = append(ids, text)
		}
	}
	if !slices.Equal(ids, wanted) {
		t.Errorf("%v, not %v", ids, wanted)
	}
}

func TestClaimStream_BadItemIsAnsweredAndDoesNotEndTheStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.send(to("a"))
	c := a.taker(&pb.ClaimOpen{})
	held := c.take(1)[0]
	results := c.settle(&pb.ClaimRequest{
		Acks:       []string{"nonsense", "", held.Message.Id},
		Nacks:      []*pb.Nack{{ClaimId: held.ClaimId, Delay: durationpb.New(-1)}, {ClaimId: strconv.FormatInt(held.Message.Revision, 10)}, nil},
		Extensions: []*pb.Extension{{ClaimId: held.ClaimId, ClaimFor: durationpb.New(time.Millisecond)}, {}},
		Releases:   []string{"1.0", held.Message.Id},
	})
	fields := []string{"acks[0]", "acks[1]", "acks[2]", "nacks[0].delay", "nacks[1].claim_id", "nacks[2].claim_id",
		"extensions[0].claim_for", "extensions[1].claim_id", "releases[0]", "releases[1]"}
	for i, field := range fields {
		e := results[i].GetError()
		want(t, "code of "+field, codes.Code(e.GetCode()), codes.InvalidArgument)
		want(t, "field", e.GetField(), field)
	}
	c.ack(held)
}

func TestClaimStream_ClosedByTheClientIsAnsweredToTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.sendAll(to("a"), to("a"))
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 1})
	got := c.take(1)[0]
	c.put(&pb.ClaimRequest{Acks: []string{got.ClaimId}})
	apptest.NoError(t, c.stream.CloseSend())
	results := 0
	for {
		r, err := c.stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		apptest.NoError(t, err)
		results += len(r.GetResults().GetResults())
	}
	want(t, "results", results, 1)
	w.operator().wantState(got.Message.Id, acked)
}
