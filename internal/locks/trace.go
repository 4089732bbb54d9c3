package locks

import (
	"context"
	"errors"
	"strings"

	"brokerd/internal/fault"
	"brokerd/internal/tracing"
)

// UseTracer makes the table trace waits. Call it before the table is used; without it, or with nil,
// the table traces nothing.
func (t *Table) UseTracer(tracer *tracing.Tracer) { t.tracer = tracer }

// traceWait records the span of a call that has waited in a queue, as a child of the span in ctx.
// It does nothing for a call that did not wait.
func (a *acquireCall) traceWait(ctx context.Context, answer *Answer, err error) {
	t := a.table
	if t.tracer == nil || a.call == nil {
		return
	}
	parent := tracing.FromContext(ctx)
	span := tracing.Span{
		Context: t.tracer.Child(parent), Parent: parent, Name: "wait for lock", Kind: tracing.Internal, Start: a.queued, End: t.clock.Now(),
	}
	what := tracing.Attribute{Key: "brokerd.lock.paths", Value: len(a.wanted.paths)}
	if a.wanted.kind == Token {
		kind, _, _ := strings.Cut(a.wanted.token, "/")
		span.Name, what = "wait for token", tracing.Attribute{Key: "brokerd.token.type", Value: kind}
	}
	outcome := "queued"
	var refused *fault.Error
	switch {
	case errors.As(err, &refused):
		outcome, span.Failure = "refused", refused.Reason
	case err != nil:
		outcome, span.Failure = "cancelled", "cancelled"
	case answer.Outcome == Granted:
		outcome = "granted"
	}
	span.Attributes = []tracing.Attribute{
		{Key: "brokerd.session", Value: a.caller.Session}, {Key: "brokerd.agent", Value: a.caller.Name()}, what,
		{Key: "brokerd.ticket", Value: int(a.call.ticket.number)}, {Key: "brokerd.wait.outcome", Value: outcome},
	}
	t.tracer.Record(span)
}
