package client

import (
	"context"
	"regexp"

	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
)

// traceParentForm is a W3C traceparent of version 00.
var traceParentForm = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

type traceKey struct{}

// ContextWithTraceParent returns a context whose calls, messages and lock requests continue a trace:
// traceparent is the W3C traceparent of the span that makes them. A handler's context has that of
// its claim.
func ContextWithTraceParent(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, traceKey{}, traceparent)
}

// WithTracing makes every call continue the trace that f finds in its context, before what
// ContextWithTraceParent put there. f returns a W3C traceparent, or "" if there is none; it must be
// quick and may be called concurrently. With OpenTelemetry:
//
//	client.WithTracing(func(ctx context.Context) string {
//		carrier := propagation.MapCarrier{}
//		propagation.TraceContext{}.Inject(ctx, carrier)
//		return carrier["traceparent"]
//	})
func WithTracing(f func(ctx context.Context) string) Option {
	return func(o *options) { o.trace = f }
}

// WithTraceParent makes the calls whose context names no span continue a trace.
func WithTraceParent(traceparent string) Option {
	return func(o *options) { o.traceParent = traceparent }
}

// span returns the W3C traceparent of a call with this context; empty if there is none. A text of
// another form counts as none.
func (l *link) span(ctx context.Context) string {
	s := ""
	if l.trace != nil {
		s = l.trace(ctx)
	}
	if s == "" {
		s, _ = ctx.Value(traceKey{}).(string)
	}
	if s == "" {
		s = l.traceParent
	}
	if s == "" || !traceParentForm.MatchString(s) {
		return ""
	}
	return s
}

// traced returns the messages with the span that sends them. It leaves the given ones as they are.
func (l *link) traced(ctx context.Context, messages []*pb.Message) []*pb.Message {
	span := l.span(ctx)
	if span == "" {
		return messages
	}
	out := make([]*pb.Message, len(messages))
	for i, m := range messages {
		out[i] = m
		if m != nil && m.TraceParent == "" {
			out[i] = proto.CloneOf(m)
			out[i].TraceParent = span
		}
	}
	return out
}
