package tracing

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	queueSize  = 8192                   // spans that wait for the exporter; further ones are dropped
	batchSize  = 512                    // spans of one export
	flushAfter = 200 * time.Millisecond // from the first span of a batch to its export
	exportTime = 30 * time.Second       // that one export may take
	stopTime   = 2 * time.Second        // that Stop waits for the last exports
	logEvery   = time.Minute            // at most one log line about failed exports in this time
)

// exportMethod is the call of OTLP that takes spans.
const exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// Options say where spans go and which traces are recorded.
type Options struct {
	Endpoint string        // see CheckEndpoint
	Sample   float64       // the share of new traces that are recorded, 0 to 1; a caller's trace is recorded as the caller says
	Version  string        // of the program
	StopTime time.Duration // that Stop waits for the last exports; 2 s if 0
	Clock    clockwork.Clock
	Log      *zap.Logger
}

// A Tracer records spans. Its methods may be called concurrently.
type Tracer struct {
	conn     *grpc.ClientConn
	resource *resource.Resource
	below    uint64 // a new trace is recorded if the last 63 bits of its id are below this
	clock    clockwork.Clock
	log      *zap.Logger

	queue    chan Span
	dropped  atomic.Int64
	reported time.Time // of the last log line; it belongs to the exporter

	stopTime time.Duration
	stopping chan struct{} // closed when the exporter has to end
	stopOnce sync.Once
	cancel   context.CancelFunc // breaks off exports
	exporter sync.WaitGroup
}

// New returns a tracer that exports spans until Stop. It does not wait for the collector, which may
// be absent. Errors: fault.Invalid for an endpoint that CheckEndpoint refuses.
func New(o Options) (*Tracer, error) {
	address, security, err := parseEndpoint(o.Endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(security), grpc.WithNoProxy(), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, fmt.Errorf("export traces to %s: %w", o.Endpoint, err)
	}
	t := &Tracer{
		conn: conn, below: uint64(o.Sample * (1 << 63)), clock: o.Clock, log: o.Log,
		resource: &resource.Resource{Attributes: []*common.KeyValue{
			keyValue(Attribute{"service.name", "brokerd"}), keyValue(Attribute{"service.version", o.Version}),
		}},
		queue: make(chan Span, queueSize), stopTime: cmp.Or(o.StopTime, stopTime), stopping: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.cancel = cancel
	t.exporter.Go(func() { t.run(ctx) })
	return t, nil
}

// Child returns the context of a new span: a child of parent, or the root of a new trace if parent
// names none. A child is recorded if its parent is.
func (t *Tracer) Child(parent Context) Context {
	if parent.Valid() {
		return parent.child()
	}
	var c Context
	binary.BigEndian.PutUint64(c.Trace[:8], rand.Uint64())
	random := rand.Uint64()
	binary.BigEndian.PutUint64(c.Trace[8:], random|1<<63) // never zero
	c.Sampled = random&(1<<63-1) < t.below
	return c.child()
}

// Record queues a span if its trace is recorded. It does not block: it drops the span if the queue
// is full. The caller must not change the span's attributes afterwards.
func (t *Tracer) Record(s Span) {
	if !s.Context.Sampled {
		return
	}
	select {
	case t.queue <- s:
	default:
		t.dropped.Add(1)
	}
}

// Dropped returns how many spans were dropped: the queue was full, or the collector did not take
// them in time.
func (t *Tracer) Dropped() int64 { return t.dropped.Load() }

// Stop exports what is queued and ends the exporter, within Options.StopTime even if the collector hangs.
// Record must not be called afterwards. Stopping twice is fine.
func (t *Tracer) Stop() error {
	var err error
	t.stopOnce.Do(func() {
		close(t.stopping)
		late := time.AfterFunc(t.stopTime, t.cancel) //nolint:forbidigo // the caller waits by the real clock
		t.exporter.Wait()
		late.Stop()
		t.cancel()
		err = t.conn.Close()
	})
	return err
}

// run exports batches until the tracer stops and the queue is empty.
func (t *Tracer) run(ctx context.Context) {
	for {
		select {
		case s := <-t.queue:
			t.export(ctx, t.gather(s))
			continue
		case <-t.stopping:
		}
		select {
		case s := <-t.queue:
			t.export(ctx, t.gather(s))
		default:
			return
		}
	}
}

// gather returns a batch that begins with a span.
func (t *Tracer) gather(first Span) []*trace.Span {
	batch := []*trace.Span{first.wire()}
	timer := t.clock.NewTimer(flushAfter)
	defer timer.Stop()
	var ended bool
	for len(batch) < batchSize {
		select {
		case s := <-t.queue:
			batch = append(batch, s.wire())
			continue
		default:
		}
		if ended {
			break
		}
		select {
		case s := <-t.queue:
			batch = append(batch, s.wire())
		case <-timer.Chan():
			ended = true
		case <-t.stopping:
			ended = true
		}
	}
	return batch
}

// export hands a batch to the collector, which may still have to start.
func (t *Tracer) export(ctx context.Context, batch []*trace.Span) {
	ctx, cancel := context.WithTimeout(ctx, exportTime)
	defer cancel()
	request := &collector.ExportTraceServiceRequest{ResourceSpans: []*trace.ResourceSpans{{
		Resource: t.resource,
		ScopeSpans: []*trace.ScopeSpans{{
			Scope: &common.InstrumentationScope{Name: "brokerd"}, Spans: batch,
		}},
	}}}
	var answer collector.ExportTraceServiceResponse
	err := t.conn.Invoke(ctx, exportMethod, request, &answer, grpc.WaitForReady(true))
	lost := answer.GetPartialSuccess().GetRejectedSpans()
	if err != nil {
		lost = int64(len(batch))
	}
	if lost == 0 {
		return
	}
	t.dropped.Add(lost)
	if now := t.clock.Now(); now.Sub(t.reported) >= logEvery {
		t.reported = now
		t.log.Warn("the collector does not take spans", zap.Int64("dropped", t.dropped.Load()), zap.Error(err),
			zap.String("refusal", answer.GetPartialSuccess().GetErrorMessage()))
	}
}
