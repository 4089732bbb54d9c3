package tracing

import (
	"time"

	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
)

// Kind is the kind of a span.
type Kind int

// The kinds of span, with the numbers of OTLP.
const (
	Internal = Kind(trace.Span_SPAN_KIND_INTERNAL)
	Producer = Kind(trace.Span_SPAN_KIND_PRODUCER)
	Consumer = Kind(trace.Span_SPAN_KIND_CONSUMER)
)

// A Span is one finished span.
type Span struct {
	Context    Context
	Parent     Context // the zero Context for a root
	Name       string
	Kind       Kind
	Start, End time.Time
	Attributes []Attribute
	Failure    string // the value of error.type; empty unless the span failed
}

// An Attribute is a key with a value: a string, an int, a bool or a []string.
type Attribute struct {
	Key   string
	Value any
}

// wire returns the span in the form of OTLP.
func (s *Span) wire() *trace.Span {
	out := &trace.Span{
		TraceId: s.Context.Trace[:], SpanId: s.Context.Span[:], Name: s.Name, Kind: trace.Span_SpanKind(s.Kind),
		StartTimeUnixNano: uint64(s.Start.UnixNano()), EndTimeUnixNano: uint64(s.End.UnixNano()),
		Flags: 1, // sampled
	}
	if s.Parent.Valid() {
		out.ParentSpanId = s.Parent.Span[:]
	}
	for _, a := range s.Attributes {
		out.Attributes = append(out.Attributes, keyValue(a))
	}
	if s.Failure != "" {
		out.Attributes = append(out.Attributes, keyValue(Attribute{"error.type", s.Failure}))
		out.Status = &trace.Status{Code: trace.Status_STATUS_CODE_ERROR}
	}
	return out
}

func keyValue(a Attribute) *common.KeyValue {
	return &common.KeyValue{Key: a.Key, Value: value(a.Value)}
}

func value(v any) *common.AnyValue {
	switch v := v.(type) {
	case string:
		return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: v}}
	case int:
		return &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(v)}}
	case bool:
		return &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: v}}
	case []string:
		list := &common.ArrayValue{}
		for _, s := range v {
			list.Values = append(list.Values, value(s))
		}
		return &common.AnyValue{Value: &common.AnyValue_ArrayValue{ArrayValue: list}}
	}
	return nil
}
