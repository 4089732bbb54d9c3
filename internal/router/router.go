package router

import (
	"context"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/backlog"
	"brokerd/internal/broker"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/producers"
	"brokerd/internal/store"
	"brokerd/internal/tracing"
)

// A Router sends messages. Its methods may be called concurrently.
type Router struct {
	Producers *producers.Producers

	core  *broker.Broker
	rest  *backlog.Chores
	store *store.Store
	log   *events.Log
	dir   *directory.Directory
	clock clockwork.Clock

	admission  Admission
	directives Directives
	advisor    Advisor
	questions  Questions
	tracer     Tracer // nil = nothing is traced
}

// New returns a router for mailboxes of the core. The backlog sends the rest of the copies of a message.
func New(
	st *store.Store, log *events.Log, dir *directory.Directory, core *broker.Broker, rest *backlog.Chores,
	clock clockwork.Clock,
) *Router {
	r := &Router{Producers: &producers.Producers{}, core: core, rest: rest, store: st, log: log, dir: dir, clock: clock}
	core.OnMailboxesRemoved(r.Producers.Clear)
	rest.OnPage(backlog.NoticeCopies, r.copyFurther)
	rest.OnPage(backlog.EventCopies, r.copyFurther)
	return r
}

// UseAdmission sets who decides about sends, and who advises their senders. Call it before the router is used.
func (r *Router) UseAdmission(a Admission, d Directives, adv Advisor) {
	r.admission, r.directives, r.advisor = a, d, adv
}

// Questions keeps the messages that require a response, and the calls that wait for one. The router calls its methods
// in the writer.
type Questions interface {
	// Asked records a message that requires a response by a deadline.
	Asked(tx *store.Tx, session int64, m *mail.Message, deadline time.Time)
	// Open returns the question that a message is, for the reply to it that is about to be sent; nil if the message
	// requires no response or has one. No call receives a reply that is delivered later.
	Open(tx *store.Tx, message int64, later bool) (OpenQuestion, error)
}

// An OpenQuestion is a question that a reply settles.
type OpenQuestion interface {
	// Awaited reports whether a call receives the reply.
	Awaited() bool
	// Answered settles the question with its first reply, which the waiting calls receive.
	Answered(tx *store.Tx, session int64, reply *mail.Message) error
}

// UseQuestions gives the router what keeps questions. Call it before the router is used.
func (r *Router) UseQuestions(q Questions) { r.questions = q }

// A Tracer makes spans of messages. The router calls its methods in the writer.
type Tracer interface {
	// Begin begins the span of a draft that an actor sends. It returns the span, and the draft with this span in its
	// content in place of its sender's. from is nil if the broker itself sends; answered is nil if the draft answers
	// no message.
	Begin(
		tx *store.Tx, a *mail.Actor, from *Origin, d *mail.Draft, answered *mail.Message,
	) (*mail.Draft, *tracing.Span, error)
	// Sent records the span of a draft that was sent, once that is committed.
	Sent(tx *store.Tx, a *mail.Actor, span *tracing.Span, d *mail.Draft, out Outcome)
}

// UseTracer makes the router trace messages. Call it before the router is used.
func (r *Router) UseTracer(t Tracer) { r.tracer = t }

// An Origin says where the messages of a call come from.
type Origin struct {
	Parent tracing.Context // the caller's span; the zero Context if the call names none
	At     time.Time       // when the broker received them
}

// Origin returns the origin of what a call sends; nil if the router traces nothing.
func (r *Router) Origin(ctx context.Context) *Origin {
	if r.tracer == nil {
		return nil
	}
	return &Origin{tracing.FromContext(ctx), r.clock.Now()}
}
