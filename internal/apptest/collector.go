package apptest

import (
	"context"
	"encoding/hex"
	"net"
	"sync"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/grpc"

	"brokerd/internal/app"
)

// A Collector takes OpenTelemetry spans with OTLP over gRPC on loopback. Its methods may be called
// concurrently.
type Collector struct {
	address string

	mu    sync.Mutex // guards the fields below
	spans []*trace.Span
	news  chan struct{} // closed at the next span
}

// traceService is the service of OTLP that takes spans.
var traceService = grpc.ServiceDesc{
	ServiceName: "opentelemetry.proto.collector.trace.v1.TraceService",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Export",
		Handler: func(service any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var r collector.ExportTraceServiceRequest
			if err := decode(&r); err != nil {
				return nil, err
			}
			return &collector.ExportTraceServiceResponse{}, service.(func(context.Context, *collector.ExportTraceServiceRequest) error)(ctx, &r)
		},
	}},
}

// NewCollector runs a collector until the end of the test.
func NewCollector(t TB) *Collector {
	t.Helper()
	c := &Collector{news: make(chan struct{})}
	c.address = ServeTraces(t, func(_ context.Context, r *collector.ExportTraceServiceRequest) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, resource := range r.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
		close(c.news)
		c.news = make(chan struct{})
		return nil
	})
	return c
}

// ServeTraces serves exports of spans on loopback until the end of the test, and returns the address.
func ServeTraces(t TB, export func(context.Context, *collector.ExportTraceServiceRequest) error, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	server.RegisterService(&traceService, export)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return l.Addr().String()
}

// WithTraces makes the broker export all traces to the collector.
func WithTraces(c *Collector) Option {
	return With(func(config *app.Config) { config.Traces, config.TraceSample = c.address, 1 })
}

// Address returns where the collector listens.
func (c *Collector) Address() string { return c.address }

// Await returns the spans that have come, once there are n of them.
func (c *Collector) Await(t TB, n int) []*trace.Span {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for {
		c.mu.Lock()
		spans, news := c.spans, c.news
		c.mu.Unlock()
		if len(spans) >= n {
			return spans
		}
		select {
		case <-news:
		case <-ctx.Done():
			for _, s := range spans {
				t.Errorf("there is the span %s, id %s, parent %s", s.Name, hex.EncodeToString(s.SpanId), hex.EncodeToString(s.ParentSpanId))
			}
			t.Fatal("the collector has", len(spans), "spans instead of", n)
		}
	}
}
