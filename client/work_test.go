package client_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

type claimStream = bidi[pb.ClaimRequest, pb.ClaimResponse]

// working is a Work in a goroutine, whose handlers are told by the test what to return.
type working struct {
	begun chan *running // a handler has a claim
	stop  context.CancelFunc
	done  chan error
}

// running is one handler.
type running struct {
	ctx   context.Context
	claim *client.Claim
	give  chan error // what it is to return
}

func work(t *testing.T, c *client.Client, o client.WorkOptions) *working {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &working{begun: make(chan *running, 64), stop: cancel, done: make(chan error, 1)}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		w.done <- c.Work(ctx, o, func(ctx context.Context, claim *client.Claim) error {
			r := &running{ctx: ctx, claim: claim, give: make(chan error, 1)}
			w.begun <- r
			select {
			case err := <-r.give:
				return err
			case <-ctx.Done():
				return ctx.Err()
			case <-t.Context().Done():
				return nil
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-finished:
		case <-time.After(patience):
			t.Error("Work did not end")
		}
	})
	return w
}

// opened takes the worker's next stream and lets it begin.
func (f *fake) opened(t *testing.T, resumed ...string) (*claimStream, *pb.ClaimOpen) {
	t.Helper()
	s := next(t, f.claims)
	open := s.recv(t).GetOpen()
	if open == nil {
		t.Fatal("the first frame has no open")
	}
	o := &pb.ClaimOpened{}
	for _, id := range resumed {
		o.Resumed = append(o.Resumed, &pb.ClaimedMessage{ClaimId: id, Resumed: true, Message: message(id)})
	}
	s.send(t, &pb.ClaimResponse{Frame: &pb.ClaimResponse_Opened{Opened: o}})
	return s, open
}

func deliver(t *testing.T, s *claimStream, ids ...string) {
	t.Helper()
	d := &pb.ClaimDelivery{}
	for _, id := range ids {
		d.Claims = append(d.Claims, &pb.ClaimedMessage{ClaimId: id, Message: message(id), Attempt: 1, MaxAttempts: 3})
	}
	s.send(t, &pb.ClaimResponse{Frame: &pb.ClaimResponse_Deliver{Deliver: d}})
}

// settled says that the broker did as it was asked.
func settled(t *testing.T, s *claimStream, ids ...string) {
	t.Helper()
	r := &pb.SettleResults{}
	for _, id := range ids {
		r.Results = append(r.Results, &pb.SettleResult{ClaimId: id})
	}
	s.send(t, &pb.ClaimResponse{Frame: &pb.ClaimResponse_Results{Results: r}})
}

// closed waits until the worker has closed its half of the stream, and ends it.
func closed(t *testing.T, s *claimStream) {
	t.Helper()
	if frame, err := s.Recv(); err == nil {
		t.Fatalf("the stream goes on: %v", frame)
	}
	s.end <- nil
}

func TestWork_WhatTheHandlerReturnsDecides(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for _, c := range []struct {
		name string
		give error
		want func(*pb.ClaimRequest) bool
	}{
		{"nil acks", nil, func(r *pb.ClaimRequest) bool { return slices.Equal(r.GetAcks(), []string{"1.1"}) }},
		{"an error nacks", boom, func(r *pb.ClaimRequest) bool {
			n := r.GetNacks()
			return len(n) == 1 && n[0].GetClaimId() == "1.1" && !n[0].GetFatal() && n[0].GetDelay() == nil && n[0].GetError() == "boom"
		}},
		{"Fatal nacks for good", client.Fatal(boom), func(r *pb.ClaimRequest) bool {
			n := r.GetNacks()
			return len(n) == 1 && n[0].GetFatal() && n[0].GetError() == "boom"
		}},
		{"RetryAfter nacks with a delay", client.RetryAfter(boom, time.Minute), func(r *pb.ClaimRequest) bool {
			n := r.GetNacks()
			return len(n) == 1 && !n[0].GetFatal() && n[0].GetDelay().AsDuration() == time.Minute
		}},
		{"Release gives back", client.Release(boom), func(r *pb.ClaimRequest) bool {
			return slices.Equal(r.GetReleases(), []string{"1.1"}) && len(r.GetNacks()) == 0
		}},
		{"a long text is cut where UTF-8 allows", errors.New(strings.Repeat("ä", 4000)), func(r *pb.ClaimRequest) bool {
			n := r.GetNacks()
			return len(n) == 1 && len(n[0].GetError()) <= 4<<10 && strings.HasSuffix(n[0].GetError(), "ä…")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, conn := newFake(t)
			w := work(t, conn, client.WorkOptions{})
			s, _ := f.opened(t)
			deliver(t, s, "1.1")
			next(t, w.begun).give <- c.give
			if frame := s.recv(t); !c.want(frame) {
				t.Fatalf("frame: %v", frame)
			}
			settled(t, s, "1.1")
			w.stop()
			closed(t, s)
			apptest.NoError(t, next(t, w.done))
		})
	}
}

func TestWork_HandlesNoMoreThanConcurrencyInTheOrderTheyCame(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	w := work(t, c, client.WorkOptions{Consumer: "w1", Concurrency: 2, Prefetch: 3})
	s, open := f.opened(t)
	if open.GetMaxInFlight() != 5 || open.GetConsumer() != "w1" {
		t.Fatalf("open: %v", open)
	}
	deliver(t, s, "1.1", "2.1", "3.1", "4.1", "5.1")
	var atOnce []*running
	for range 2 {
		atOnce = append(atOnce, next(t, w.begun))
	}
	for _, want := range []string{"3.1", "4.1", "5.1"} {
		select {
		case r := <-w.begun:
			t.Fatalf("%s was begun while two were running", r.claim.ID)
		default:
		}
		atOnce[0].give <- nil
		r := next(t, w.begun)
		if r.claim.ID != want {
			t.Fatalf("%s was begun, want %s", r.claim.ID, want)
		}
		atOnce = append(atOnce[1:], r)
	}
}

func TestWork_RevokedClaimCancelsItsHandlerAndNoOther(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	w := work(t, c, client.WorkOptions{Concurrency: 2})
	s, _ := f.opened(t)
	deliver(t, s, "1.1", "2.1")
	by := map[string]*running{}
	for range 2 {
		r := next(t, w.begun)
		by[r.claim.ID] = r
	}
	s.send(t, &pb.ClaimResponse{Frame: &pb.ClaimResponse_Revoke{Revoke: &pb.ClaimRevoked{
		ClaimIds: []string{"1.1"}, Reason: pb.RevokeReason_REVOKE_REASON_EXPIRED}}})
	next(t, by["1.1"].ctx.Done())
	wantIs(t, context.Cause(by["1.1"].ctx), client.ErrClaimLost)
	apptest.NoError(t, by["2.1"].ctx.Err())
	// The lost one is not settled: the next frame is about the other.
	by["2.1"].give <- nil
	if frame := s.recv(t); !slices.Equal(frame.GetAcks(), []string{"2.1"}) || len(frame.GetNacks()) > 0 {
		t.Fatalf("frame: %v", frame)
	}
}

func TestWork_TakesItsClaimsOverAfterTheConnectionBroke(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	w := work(t, c, client.WorkOptions{Concurrency: 4})
	s, _ := f.opened(t)
	deliver(t, s, "1.1", "2.1", "3.1")
	by := map[string]*running{}
	for range 3 {
		r := next(t, w.begun)
		by[r.claim.ID] = r
	}
	by["1.1"].give <- nil
	if frame := s.recv(t); !slices.Equal(frame.GetAcks(), []string{"1.1"}) {
		t.Fatalf("frame: %v", frame)
	}
	s.end <- errCut // before the ack is answered

	// The broker has 1.1 as acknowledged, 2.1 as held, 3.1 as lost, and 4.1 from a frame that never came.
	s, _ = f.opened(t, "2.1", "4.1")
	if frame := s.recv(t); !slices.Equal(frame.GetAcks(), []string{"1.1"}) {
		t.Fatalf("the unanswered ack is not repeated: %v", frame)
	}
	settled(t, s, "1.1")
	if r := next(t, w.begun); r.claim.ID != "4.1" || !r.claim.Resumed {
		t.Fatalf("begun: %+v", r.claim)
	}
	next(t, by["3.1"].ctx.Done())
	wantIs(t, context.Cause(by["3.1"].ctx), client.ErrClaimLost)
	if by["2.1"].ctx.Err() != nil {
		t.Fatal("a claim that was taken over was cancelled")
	}
	by["2.1"].give <- nil
	if frame := s.recv(t); !slices.Equal(frame.GetAcks(), []string{"2.1"}) {
		t.Fatalf("frame: %v", frame)
	}
	select {
	case r := <-w.begun:
		t.Fatalf("%s was handled twice", r.claim.ID)
	default:
	}
}

func TestWork_TellsOfAClaimThatCouldNotBeSettled(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	lost := make(chan error, 1)
	w := work(t, c, client.WorkOptions{OnLost: func(claim *client.Claim, err error) {
		if claim.ID == "1.1" {
			lost <- err
		}
	}})
	s, _ := f.opened(t)
	deliver(t, s, "1.1")
	next(t, w.begun).give <- nil
	s.recv(t)
	s.send(t, &pb.ClaimResponse{Frame: &pb.ClaimResponse_Results{Results: &pb.SettleResults{Results: []*pb.SettleResult{{
		ClaimId: "1.1", Error: &pb.ItemError{Code: int32(codes.FailedPrecondition), Reason: "CLAIM_LOST", Message: "too late"}}}}}})
	if err := next(t, lost); client.Reason(err) != "CLAIM_LOST" {
		t.Fatalf("lost: %v", err)
	}
}

func TestWork_GoAwayFinishesWhatRunsGivesBackTheRestAndReconnects(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	w := work(t, c, client.WorkOptions{Prefetch: 1})
	s, _ := f.opened(t)
	deliver(t, s, "1.1", "2.1")
	r := next(t, w.begun)
	s.send(t, &pb.ClaimResponse{Frame: &pb.ClaimResponse_GoAway{GoAway: &pb.ClaimGoAway{}}})
	if frame := s.recv(t); !slices.Equal(frame.GetReleases(), []string{"2.1"}) {
		t.Fatalf("frame: %v", frame)
	}
	settled(t, s, "2.1")
	if r.ctx.Err() != nil {
		t.Fatal("the handler was cancelled")
	}
	r.give <- nil
	if frame := s.recv(t); !slices.Equal(frame.GetAcks(), []string{"1.1"}) {
		t.Fatalf("frame: %v", frame)
	}
	settled(t, s, "1.1")
	closed(t, s)

	s, _ = f.opened(t)
	deliver(t, s, "3.1")
	if r := next(t, w.begun); r.claim.ID != "3.1" {
		t.Fatalf("begun: %+v", r.claim)
	}
}

func TestWork_EndOfContextGivesBackWhatWasNotBegunAndSettlesWhatRan(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	w := work(t, c, client.WorkOptions{Prefetch: 2, ClaimFor: time.Second})
	s, _ := f.opened(t)
	deliver(t, s, "1.1", "2.1")
	r := next(t, w.begun)
	w.stop()
	if frame, err := s.Recv(); err == nil {
		t.Fatalf("the stream goes on: %v", frame)
	}
	deliver(t, s, "3.1") // was on its way
	s.end <- nil
	release := next(t, f.unary)
	if ids := release.request.(*pb.ReleaseClaimsRequest).GetIds(); !slices.Equal(ids, []string{"2.1", "3.1"}) {
		t.Fatalf("released: %v", ids)
	}
	release.answer <- nil
	if r.ctx.Err() != nil {
		t.Fatal("the handler was cancelled at once")
	}
	// The claim is kept alive without the stream.
	extend := next(t, f.unary)
	if x := extend.request.(*pb.ExtendClaimsRequest).GetExtensions(); len(x) != 1 || x[0].GetClaimId() != "1.1" {
		t.Fatalf("extended: %v", x)
	}
	r.give <- nil
	extend.answer <- nil
	var call *unaryCall
	for call = next(t, f.unary); ; call = next(t, f.unary) { // it may have been extended once more
		if ack, ok := call.request.(*pb.AckMessagesRequest); ok {
			if !slices.Equal(ack.GetIds(), []string{"1.1"}) {
				t.Fatalf("acknowledged: %v", ack)
			}
			break
		}
		call.answer <- nil
	}
	select {
	case err := <-w.done:
		t.Fatalf("Work ended before the ack was answered: %v", err)
	default:
	}
	call.answer <- nil
	apptest.NoError(t, next(t, w.done))
}

func TestWork_DrainTimeoutCancelsHandlersAndGivesTheirMessagesBack(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	w := work(t, c, client.WorkOptions{DrainTimeout: time.Millisecond})
	s, _ := f.opened(t)
	deliver(t, s, "1.1")
	r := next(t, w.begun)
	w.stop()
	closed(t, s)
	next(t, r.ctx.Done())
	wantIs(t, context.Cause(r.ctx), client.ErrStopped)
	release := next(t, f.unary)
	if ids := release.request.(*pb.ReleaseClaimsRequest).GetIds(); !slices.Equal(ids, []string{"1.1"}) {
		t.Fatalf("released: %v", ids)
	}
	release.answer <- nil
	apptest.NoError(t, next(t, w.done))
}

func TestWork_RefusedCallIsRepeatedForEachClaimAlone(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	var lost atomic.Int32
	w := work(t, c, client.WorkOptions{Prefetch: 2, OnLost: func(*client.Claim, error) { lost.Add(1) }})
	s, _ := f.opened(t)
	deliver(t, s, "1.1", "2.1", "3.1")
	r := next(t, w.begun)
	w.stop()
	closed(t, s)
	refusal := status.Error(codes.FailedPrecondition, "one of them is lost")
	for _, want := range [][]string{{"2.1", "3.1"}, {"2.1"}} {
		call := next(t, f.unary)
		if ids := call.request.(*pb.ReleaseClaimsRequest).GetIds(); !slices.Equal(ids, want) {
			t.Fatalf("released: %v, want %v", ids, want)
		}
		call.answer <- refusal
	}
	call := next(t, f.unary)
	if ids := call.request.(*pb.ReleaseClaimsRequest).GetIds(); !slices.Equal(ids, []string{"3.1"}) {
		t.Fatalf("released: %v", ids)
	}
	call.answer <- nil
	r.give <- nil
	next(t, f.unary).answer <- nil
	if err := next(t, w.done); err != nil || lost.Load() != 1 {
		t.Fatalf("%v, %d lost", err, lost.Load())
	}
}

func TestWork_LastingErrorCancelsHandlersAndIsReturned(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	w := work(t, c, client.WorkOptions{})
	s, _ := f.opened(t)
	deliver(t, s, "1.1")
	r := next(t, w.begun)
	s.end <- status.Error(codes.Aborted, "another worker took over")
	next(t, r.ctx.Done())
	wantIs(t, context.Cause(r.ctx), client.ErrClaimLost)
	wantCode(t, next(t, w.done), codes.Aborted)
}

func TestWork_UnavailableForASettlementIsNoAnswer(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	w := work(t, c, client.WorkOptions{})
	s, _ := f.opened(t)
	deliver(t, s, "1.1")
	next(t, w.begun).give <- nil
	s.recv(t)
	s.send(t, &pb.ClaimResponse{Frame: &pb.ClaimResponse_Results{Results: &pb.SettleResults{Results: []*pb.SettleResult{{
		ClaimId: "1.1", Error: &pb.ItemError{Code: int32(codes.Unavailable), Message: "the broker stops"}}}}}})
	s, _ = f.opened(t, "1.1")
	if frame := s.recv(t); !slices.Equal(frame.GetAcks(), []string{"1.1"}) {
		t.Fatalf("frame: %v", frame)
	}
}
