package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// errLeft ends a stream that the broker asked to leave, once everything on it is settled.
var errLeft = status.Error(codes.Unavailable, "the broker stops")

// serve works on one stream until it ends, and returns why it did. When ctx ends it takes nothing more and closes the
// stream in good order.
func (w *worker) serve() error {
	streamCtx, cancel := context.WithCancel(w.base)
	defer cancel()
	opening := context.AfterFunc(w.ctx, cancel)
	stream, resumed, err := w.open(streamCtx)
	if !opening() {
		return w.ctx.Err()
	}
	if err != nil {
		return err
	}
	w.retry.worked()
	w.adopt(resumed)

	ended := make(chan error, 1)
	go func() { ended <- w.read(stream) }()
	closing, written := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(written)
		w.write(stream, closing)
	}()
	err = w.attend(closing, ended, cancel)
	cancel()
	<-written
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outbox = append(w.unheard, w.outbox...)
	w.unheard = nil
	return err
}

// open opens a stream and returns the claims that come with it.
func (w *worker) open(ctx context.Context) (pb.MessageService_ClaimClient, []*pb.ClaimedMessage, error) {
	stream, err := w.client.Messages().Claim(ctx, grpc.WaitForReady(true))
	if err != nil {
		return nil, nil, err
	}
	// An error of Send is only io.EOF; Recv has the reason.
	_ = stream.Send(&pb.ClaimRequest{Open: w.o.open()})
	frame, err := stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	opened := frame.GetOpened()
	if opened == nil {
		return nil, nil, errors.New("claim: the broker's first frame is not opened")
	}
	return stream, opened.GetResumed(), nil
}

func (o *WorkOptions) open() *pb.ClaimOpen {
	open := &pb.ClaimOpen{
		Consumer:       o.Consumer,
		Mailboxes:      o.Mailboxes,
		Types:          o.Types,
		LowestPriority: int32(o.LowestPriority),
		MaxInFlight:    int32(o.Concurrency + o.Prefetch),
		MaxBytes:       int32(o.MaxBytes),
	}
	if o.ClaimFor > 0 {
		open.ClaimFor = durationpb.New(o.ClaimFor)
	}
	if o.MaxTotal > 0 {
		open.MaxTotal = durationpb.New(o.MaxTotal)
	}
	return open
}

// adopt sets what the worker holds against what the broker says it holds. Claims that are being handled go on; those that
// are gone are lost; those that are new to the worker, from an earlier process or a frame that never came, begin.
func (w *worker) adopt(resumed []*pb.ClaimedMessage) {
	held := map[string]bool{}
	for _, c := range resumed {
		held[c.GetClaimId()] = true
	}
	w.mu.Lock()
	w.paused, w.leaving = false, false
	// What was done with the claim before the stream broke may have arrived: a repeated ack does no harm, the others
	// would only be refused.
	kept := w.outbox[:0]
	for _, s := range w.outbox {
		if s.kind == ack || held[s.job.claim.ID] {
			kept = append(kept, s)
		} else {
			delete(w.jobs, s.job.claim.ID)
		}
	}
	w.outbox = kept
	for id, j := range w.jobs {
		if !held[id] {
			w.lose(j, fmt.Errorf("%w: it ran out while the connection was broken", ErrClaimLost))
		}
	}
	w.mu.Unlock()
	w.tell(w.outgoing)
	w.take(resumed)
}

// attend waits for the end of the stream, and brings it about when ctx ends or the broker has asked to leave and
// everything is settled.
func (w *worker) attend(closing chan struct{}, ended chan error, cancel func()) error {
	for {
		select {
		case err := <-ended:
			return err
		case <-w.ctx.Done():
			return w.finishStream(closing, ended, cancel)
		case <-w.changed:
			if w.left() {
				_ = w.finishStream(closing, ended, cancel) // it ends because we close it
				return errLeft
			}
		}
	}
}

// left reports whether the broker asked to leave and nothing is left to settle.
func (w *worker) left() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leaving && len(w.jobs) == 0
}

// finishStream closes the worker's half of the stream and waits for the broker to close the other.
func (w *worker) finishStream(closing chan struct{}, ended chan error, cancel func()) error {
	close(closing)
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case err := <-ended:
		return err
	case <-t.C:
		cancel()
		return <-ended
	}
}

// write sends what is in the outbox, everything there is in one frame, until the stream ends or closing is closed.
func (w *worker) write(stream pb.MessageService_ClaimClient, closing <-chan struct{}) {
	for closed := false; ; {
		if frame := w.frame(); frame != nil {
			if stream.Send(frame) != nil {
				return // read learns why
			}
			continue
		}
		if closed {
			_ = stream.CloseSend() // never fails
			return
		}
		select {
		case <-w.outgoing:
		case <-closing:
			closed = true
		case <-stream.Context().Done():
			return
		}
	}
}

// frame moves the outbox into a frame; nil if it is empty.
func (w *worker) frame() *pb.ClaimRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.outbox) == 0 {
		return nil
	}
	frame := &pb.ClaimRequest{}
	// The answers come in this order.
	for _, kind := range []settlementKind{ack, nack, release} {
		for _, s := range w.outbox {
			if s.kind != kind {
				continue
			}
			w.unheard = append(w.unheard, s)
			switch kind {
			case ack:
				frame.Acks = append(frame.Acks, s.job.claim.ID)
			case nack:
				frame.Nacks = append(frame.Nacks, s.nack)
			case release:
				frame.Releases = append(frame.Releases, s.job.claim.ID)
			}
		}
	}
	w.outbox = nil
	return frame
}

// read takes what the broker sends until the stream ends, and returns why it did. It never writes to the stream, or both ends
// could block on flow control.
func (w *worker) read(stream pb.MessageService_ClaimClient) error {
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		switch f := frame.GetFrame().(type) {
		case *pb.ClaimResponse_Deliver:
			w.take(f.Deliver.GetClaims())
		case *pb.ClaimResponse_Results:
			if err := w.results(f.Results.GetResults()); err != nil {
				return err
			}
		case *pb.ClaimResponse_Revoke:
			w.revoked(f.Revoke)
		case *pb.ClaimResponse_GoAway:
			w.leave()
		}
	}
}

// results closes the settlements that the broker answered. UNAVAILABLE is an answer to none: that is sent again on another stream.
func (w *worker) results(results []*pb.SettleResult) error {
	w.mu.Lock()
	heard := w.unheard[:min(len(results), len(w.unheard))]
	var unavailable error
	for i, r := range results[:len(heard)] {
		if e := itemError(0, r.GetError()); e != nil && e.Code == codes.Unavailable {
			heard, unavailable = heard[:i], e
			break
		}
	}
	w.unheard = w.unheard[len(heard):]
	w.mu.Unlock()

	w.close(heard)
	for i, s := range heard {
		if e := itemError(0, results[i].GetError()); e != nil {
			w.report(s, e)
		}
	}
	return unavailable
}

// revoked stops the handlers of claims that are lost.
func (w *worker) revoked(r *pb.ClaimRevoked) {
	why := fmt.Errorf("%w: %s", ErrClaimLost, revokeText(r.GetReason()))
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range r.GetClaimIds() {
		if j := w.jobs[id]; j != nil {
			w.lose(j, why)
		}
	}
}

func revokeText(reason pb.RevokeReason) string {
	switch reason {
	case pb.RevokeReason_REVOKE_REASON_EXPIRED:
		return "it lasted for as long as a claim may, or ran out"
	case pb.RevokeReason_REVOKE_REASON_TAKEN_OVER:
		return "another worker of the same consumer took it over"
	case pb.RevokeReason_REVOKE_REASON_SETTLED:
		return "it was settled elsewhere"
	default:
		return "the broker revoked it"
	}
}

// leave gives back what was not begun, because the broker stops; what is being handled is settled on this stream.
func (w *worker) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused, w.leaving = true, true
	w.returnReady()
}
