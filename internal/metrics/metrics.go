package metrics

import (
	"net/http"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
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
	events    *prometheus.CounterVec
	waits     *prometheus.HistogramVec
	offers    *prometheus.HistogramVec          // by way
	messages  map[string]*prometheus.CounterVec // by fate

	mu       sync.Mutex // guards sessions
	sessions map[string]struct{}
}

// maxSessions limits the sessions that have series for their messages. The sessions after these share
// the series of otherSessions.
const (
	maxSessions   = 20
	otherSessions = "other"
)

// expected are reasons of refusals that alert rules name. Their counters start at 0, so that the first
// refusal is an increase.
var expected = []string{
	"MAILBOX_FULL", "INTERNAL", "CREDENTIAL_REQUIRED", "CREDENTIAL_UNREADABLE", "CREDENTIAL_UNKNOWN", "CREDENTIAL_REVOKED", "CREDENTIAL_EXPIRED",
}

// fates are the counters of messages, with their help.
var fates = map[string]string{
	"sent":      "Messages that were sent.",
	"delivered": "Copies of messages that an agent has received for the first time.",
	"acked":     "Copies of messages that were acknowledged.",
	"failed":    "Attempts at a message that failed or ran out.",
	"dead":      "Copies of messages that became dead letters.",
	"expired":   "Copies of messages whose time to live ended before they were acknowledged.",
}

// New returns metrics of which nothing has been observed yet.
func New(clock clockwork.Clock, log *zap.Logger, version string) *Metrics {
	m := &Metrics{
		clock: clock, log: log, registry: prometheus.NewRegistry(),
		messages: map[string]*prometheus.CounterVec{}, sessions: map[string]struct{}{},
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
	m.events = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "brokerd_events_total",
		Help: "Events of the broker in the event log, by type."}, []string{"type"})
	m.waits = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "brokerd_lock_wait_seconds",
		Help:    "Time that requests for locks and tokens waited for their grant, if they could not be granted at once.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 13)}, []string{"kind"})
	for _, kind := range []string{"lock", "token"} {
		m.waits.WithLabelValues(kind)
	}
	m.offers = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "brokerd_send_to_accept_seconds",
		Help:    "Time from the sending of a message until there was evidence that a model received it, by the way of the offer.",
		Buckets: prometheus.ExponentialBuckets(0.01, 4, 10)}, []string{"way"})
	m.offers.WithLabelValues("turn_end") // so that the name is there before the first offer
	for fate, help := range fates {
		m.messages[fate] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "brokerd_messages_" + fate + "_total", Help: help},
			[]string{"session", "class"})
		m.registry.MustRegister(m.messages[fate])
	}
	for _, reason := range expected {
		m.refusals.WithLabelValues(reason)
	}
	for _, direction := range []string{"upload", "download"} {
		m.bytes.WithLabelValues(direction) // so that both are 0 before the first transfer
	}
	m.registry.MustRegister(m.commits, m.functions, m.rows, m.work, m.streams, m.calls, m.refusals, m.outcomes, m.bytes, m.events, m.waits, m.offers, build(version),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Read has what the source knows read whenever somebody asks for the metrics. It is called once.
func (m *Metrics) Read(s Source) { m.registry.MustRegister(newReader(s, m.clock, m.log)) }

// Handler returns what answers Prometheus. What cannot be read is left out and logged.
func (m *Metrics) Handler() http.Handler {
	return handler(m.registry, m.log)
}

// Committed is told of commits by the store.
func (m *Metrics) Committed(c store.Commit) {
	m.commits.Observe(c.Took.Seconds())
	m.functions.Observe(float64(c.Functions))
	m.rows.Observe(float64(c.Rows))
}

// Acked implements broker.Observer.
func (m *Metrics) Acked(after time.Duration) { m.work.Observe(after.Seconds()) }

// Accepted implements broker.Observer.
func (m *Metrics) Accepted(way string, after time.Duration) {
	m.offers.WithLabelValues(way).Observe(after.Seconds())
}

// Full implements broker.Observer.
func (m *Metrics) Full(copies int) {
	m.refusals.WithLabelValues("MAILBOX_FULL").Add(float64(copies))
}

// Message implements broker.Observer.
func (m *Metrics) Message(fate, session, class string) {
	m.messages[fate].WithLabelValues(m.label(session), class).Inc()
}

// label returns the label of a session.
func (m *Metrics) label(session string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.sessions[session]; !known {
		if len(m.sessions) == maxSessions {
			return otherSessions
		}
		m.sessions[session] = struct{}{}
	}
	return session
}

// Event counts an event of the log.
func (m *Metrics) Event(text string) { m.events.WithLabelValues(text).Inc() }

// Waited implements locks.Observer.
func (m *Metrics) Waited(kind string, d time.Duration) {
	m.waits.WithLabelValues(kind).Observe(d.Seconds())
}

// Work implements work.Observer.
func (m *Metrics) Work(kind, outcome string) { m.outcomes.WithLabelValues(kind, outcome).Inc() }

// Transferred implements artifacts.Transfers.
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
