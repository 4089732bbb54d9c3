package metrics

import (
	"net/http"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"brokerd/internal/store"
)

// Metrics gathers what is observed. It is the observer of the store, the server and the broker; its methods may be
// called concurrently and are quick.
type Metrics struct {
	clock    clockwork.Clock
	log      *zap.Logger
	registry *prometheus.Registry

	commits   prometheus.Histogram
	functions prometheus.Histogram
	rows      prometheus.Histogram
	work      prometheus.Histogram
	streams   *prometheus.GaugeVec
	calls     *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	outcomes  *prometheus.CounterVec
	bytes     *prometheus.CounterVec
}

// New returns metrics of which nothing has been observed yet.
func New(clock clockwork.Clock, log *zap.Logger, version string) *Metrics {
	m := &Metrics{
		clock: clock, log: log, registry: prometheus.NewRegistry(),
		commits: histogram("brokerd_commit_seconds", "Time of a commit, with its sync to disk if --sync is full.",
			prometheus.ExponentialBuckets(0.0001, 2, 16)),
		functions: histogram("brokerd_batch_functions", "Requests that one commit has carried.", prometheus.ExponentialBuckets(1, 2, 12)),
		rows:      histogram("brokerd_batch_rows", "Rows that one commit has changed.", prometheus.ExponentialBuckets(1, 2, 14)),
		work: histogram("brokerd_claim_to_ack_seconds", "Time from the claim of a message to its acknowledgement.",
			prometheus.ExponentialBuckets(0.001, 4, 13)),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "brokerd_open_streams", Help: "Streams that are open."}, []string{"method"}),
		calls:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "brokerd_calls_total", Help: "Calls and streams that have ended, by gRPC code."}, []string{"method", "code"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "brokerd_refusals_total",
			Help: "Calls, items of streams and copies of messages that were refused, by the reason that the caller was told."}, []string{"reason"}),
	}
	m.outcomes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "brokerd_work_total",
		Help: "Changes of tasks, decisions, blockers, handoffs, votes and artifacts, by kind and outcome."},
		[]string{"kind", "outcome"})
	m.bytes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "brokerd_artifact_bytes_total",
		Help: "Bytes of contents of artifacts that uploads and downloads have transferred."}, []string{"direction"})
	for _, direction := range []string{"upload", "download"} {
		m.bytes.WithLabelValues(direction) // so that both are 0 before the first transfer
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "brokerd_build_info", Help: "Always 1; the version is in the label.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.commits, m.functions, m.rows, m.work, m.streams, m.calls, m.refusals, m.outcomes, m.bytes, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Read has what the source knows read whenever somebody asks for the metrics. It is called once.
func (m *Metrics) Read(s Source) { m.registry.MustRegister(newReader(s, m.clock, m.log)) }

// Handler returns what answers Prometheus. What cannot be read is left out and logged.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: zap.NewStdLog(m.log), MaxRequestsInFlight: 4,
	})
}

// Committed is told of commits by the store.
func (m *Metrics) Committed(c store.Commit) {
	m.commits.Observe(c.Took.Seconds())
	m.functions.Observe(float64(c.Functions))
	m.rows.Observe(float64(c.Rows))
}

// Acked implements broker.Observer.
func (m *Metrics) Acked(after time.Duration) { m.work.Observe(after.Seconds()) }

// Full implements broker.Observer.
func (m *Metrics) Full(copies int) {
	m.refusals.WithLabelValues("MAILBOX_FULL").Add(float64(copies))
}

// Work implements work.Observer.
func (m *Metrics) Work(kind, outcome string) { m.outcomes.WithLabelValues(kind, outcome).Inc() }

// Transferred implements artifacts.Observer.
func (m *Metrics) Transferred(direction string, bytes int64) {
	m.bytes.WithLabelValues(direction).Add(float64(bytes))
}

// Opened implements rpc.Observer.
func (m *Metrics) Opened(method string) { m.streams.WithLabelValues(method).Inc() }

// Closed implements rpc.Observer.
func (m *Metrics) Closed(method string) { m.streams.WithLabelValues(method).Dec() }

// Called implements rpc.Observer.
func (m *Metrics) Called(method, code, reason string) {
	m.calls.WithLabelValues(method, code).Inc()
	m.Refused(reason)
}

// Refused counts a refusal, of an item of a stream too; an empty reason is none.
func (m *Metrics) Refused(reason string) {
	if reason != "" {
		m.refusals.WithLabelValues(reason).Inc()
	}
}

func histogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}
