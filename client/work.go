package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

const (
	// DefaultDrainTimeout is how long Work waits for its handlers when it stops, unless told otherwise.
	DefaultDrainTimeout = 30 * time.Second

	defaultClaimFor = 30 * time.Second // the broker's
	maxInFlight     = 1000             // the broker's limit
	stopGrace       = 5 * time.Second  // for handlers whose context was cancelled, and for the broker to end a stream
)

// WorkOptions say what to take and how to work on it. The zero value takes one message at a time, of
// all that the agent may take.
type WorkOptions struct {
	// Consumer tells workers under one agent name apart. Opening a second worker under the same agent and consumer
	// takes the first one's claims over and ends it with ABORTED.
	Consumer string
	// Mailboxes to take from: the agent's own name, role:NAME, channel:NAME. Empty = all that the agent may.
	Mailboxes []string
	// Types of messages to take; empty = all.
	Types []string
	// LowestPriority to take, 1 to 10; 0 = any.
	LowestPriority int
	// Concurrency is how many handlers run at the same time; 0 = 1. With Prefetch at most 1,000.
	Concurrency int
	// Prefetch is how many messages are claimed beyond those being handled, to save a round trip between two. Nobody
	// else can take these meanwhile.
	Prefetch int
	// MaxBytes of messages held at the same time; 0 = 4 MiB.
	MaxBytes int
	// ClaimFor is how long a claim outlives a broken connection; 0 = 30 s.
	ClaimFor time.Duration
	// MaxTotal is the longest the broker extends a claim while the worker is connected; 0 = 30 min.
	MaxTotal time.Duration
	// DrainTimeout is how long handlers may go on once ctx has ended; 0 = DefaultDrainTimeout. Then their context is cancelled.
	DrainTimeout time.Duration
	// OnLost, if set, is told of claims that could not be settled, because they were lost before: somebody else may
	// handle the message again. It is called concurrently with handlers and must return quickly.
	OnLost func(c *Claim, err error)
}

// A Handler works on one message. What it returns decides what becomes of it: nil finishes it, Release(…) gives it back
// unharmed, Fatal(…) makes it a dead letter, and any other error counts as a failed attempt that is tried again later
// (RetryAfter says when). ctx is cancelled when the claim is lost (cause ErrClaimLost) or the worker has to
// stop (cause ErrStopped); an error returned after the latter gives the message back unharmed. A handler
// that finishes in spite of a lost claim is still acknowledged, if nobody has taken the message since.
type Handler func(ctx context.Context, c *Claim) error

// Work takes messages and gives each to handler, until ctx ends. Handlers run in goroutines of their own, at most Concurrency
// at the same time. The broker extends their claims while the connection lives. When it breaks, handlers
// go on; Work reconnects as the same consumer and takes its claims over, and those whose claim was lost meanwhile are cancelled.
//
// When ctx ends Work takes nothing more, gives back what no handler has begun, waits for the handlers as long as
// DrainTimeout lets it, settles what they did, and returns nil. Errors that trying again does not heal end it as well, with
// the handlers' contexts cancelled: such as FAILED_PRECONDITION for an agent that is not registered, or ABORTED
// when another worker of the same consumer took over.
func (c *Client) Work(ctx context.Context, o WorkOptions, handler Handler) error {
	o.Concurrency = max(o.Concurrency, 1)
	o.Prefetch = max(o.Prefetch, 0)
	if held := o.Concurrency + o.Prefetch; held > maxInFlight {
		return fmt.Errorf("work: Concurrency and Prefetch make %d messages at the same time; %d are allowed", held, maxInFlight)
	}
	if o.DrainTimeout <= 0 {
		o.DrainTimeout = DefaultDrainTimeout
	}
	w := &worker{
		client:   c,
		o:        o,
		handler:  handler,
		retry:    retry{link: c.link},
		ctx:      ctx,
		base:     context.WithoutCancel(ctx),
		outgoing: make(chan struct{}, 1),
		changed:  make(chan struct{}, 1),
		jobs:     map[string]*job{},
	}
	return w.run()
}

// worker is one call of Work.
type worker struct {
	client   *Client
	o        WorkOptions
	handler  Handler
	retry    retry
	ctx      context.Context // once it has ended, nothing more is begun
	base     context.Context // of the handlers: outlives ctx
	outgoing chan struct{}   // buffered: the outbox has something
	changed  chan struct{}   // buffered: a handler returned or a settlement was answered

	mu      sync.Mutex
	jobs    map[string]*job // by claim id, until their settlement is answered
	ready   []*job          // not begun, in the order they came
	running int
	paused  bool         // nothing more is begun either
	leaving bool         // the broker said go_away on this stream
	outbox  []settlement // not yet written
	unheard []settlement // written to the present stream and not yet answered, in its order
}

// job is a claim in the worker's hands. Its fields are guarded by the worker's mu.
type job struct {
	claim  *Claim
	cancel context.CancelCauseFunc // set while its handler runs
	lost   error                   // why the claim is no longer the worker's
}

// run serves one stream after the other, then winds up.
func (w *worker) run() error {
	for {
		err := w.serve()
		if w.ctx.Err() != nil {
			return w.drain()
		}
		if !transient(err) {
			return w.abandon(err)
		}
		if !w.retry.wait(w.ctx, err) {
			return w.drain()
		}
	}
}

// take adds claims to what is ready, and begins what it can.
func (w *worker) take(claims []*pb.ClaimedMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range claims {
		if w.jobs[c.GetClaimId()] != nil {
			continue
		}
		j := &job{claim: &Claim{
			ID:          c.GetClaimId(),
			Message:     c.GetMessage(),
			Attempt:     int(c.GetAttempt()),
			MaxAttempts: int(c.GetMaxAttempts()),
			Mailbox:     c.GetMailbox(),
			Resumed:     c.GetResumed(),
			TraceParent: cmp.Or(c.GetTraceParent(), c.GetMessage().GetTraceParent()),
			client:      w.client,
		}}
		w.jobs[j.claim.ID] = j
		w.ready = append(w.ready, j)
	}
	if w.leaving {
		w.returnReady()
		return
	}
	w.begin()
}

// begin starts handlers for what is ready. mu is held.
func (w *worker) begin() {
	for !w.paused && w.ctx.Err() == nil && w.running < w.o.Concurrency && len(w.ready) > 0 {
		j := w.ready[0]
		w.ready[0] = nil
		w.ready = w.ready[1:]
		var ctx context.Context
		ctx, j.cancel = context.WithCancelCause(w.base)
		if j.claim.TraceParent != "" {
			ctx = ContextWithTraceParent(ctx, j.claim.TraceParent)
		}
		w.running++
		go w.handle(ctx, j)
	}
}

// handle runs the handler on one claim and puts its verdict into the outbox.
func (w *worker) handle(ctx context.Context, j *job) {
	err := w.handler(ctx, j.claim)
	if err != nil && errors.Is(context.Cause(ctx), ErrStopped) {
		err = Release(err)
	}
	j.cancel(nil)

	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	j.cancel = nil
	if err != nil && j.lost != nil {
		delete(w.jobs, j.claim.ID)
	} else {
		w.post(settle(j, err))
	}
	w.begin()
	w.tell(w.changed)
}

// post queues a settlement. mu is held.
func (w *worker) post(s settlement) {
	w.outbox = append(w.outbox, s)
	w.tell(w.outgoing)
}

// returnReady gives back what was not begun. mu is held.
func (w *worker) returnReady() {
	for _, j := range w.ready {
		w.post(settlement{job: j, kind: release})
	}
	w.ready = nil
	w.tell(w.changed)
}

// lose notes that a claim is no longer the worker's, and stops its handler. mu is held.
func (w *worker) lose(j *job, why error) {
	if j.lost != nil {
		return
	}
	j.lost = why
	if j.cancel != nil {
		j.cancel(why)
		return
	}
	for i, r := range w.ready {
		if r == j {
			w.ready = append(w.ready[:i:i], w.ready[i+1:]...)
			delete(w.jobs, j.claim.ID)
			return
		}
	}
}

// close forgets claims whose settlement was answered.
func (w *worker) close(answered []settlement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range answered {
		delete(w.jobs, s.job.claim.ID)
	}
	w.tell(w.changed)
}

// report tells the caller of a settlement that was refused. mu is not held: the callback is the caller's code.
func (w *worker) report(s settlement, err error) {
	if err != nil && w.o.OnLost != nil {
		w.o.OnLost(s.job.claim, err)
	}
}

// tell signals a buffered channel.
func (w *worker) tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
