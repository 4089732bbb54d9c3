package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// A Standing is what one replica knows of all.
type Standing struct {
	Replica   string // its address
	Leads     bool
	Epoch     int64 // of the leader: one more with each change of the lead
	Present   int   // replicas that have given a sign of late, this one included
	Silent    int   // those that have not
	Forwarded int64 // connections that this replica has forwarded to the leader
}

// Replica adds the figures of a replica that leads.
func (m *Metrics) Replica(read func() Standing) { m.registry.MustRegister(newStanding(read)) }

// Follower returns what answers Prometheus for a replica that does not lead.
func Follower(log *zap.Logger, version string, read func() Standing) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(newStanding(read), build(version),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return handler(registry, log)
}

func build(version string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "brokerd_build_info", Help: "Always 1; the version is in the label.", ConstLabels: prometheus.Labels{"version": version},
	})
	g.Set(1)
	return g
}

func handler(registry *prometheus.Registry, log *zap.Logger) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: zap.NewStdLog(log), MaxRequestsInFlight: 4,
	})
}

// standing reads the figures of a replica. It implements prometheus.Collector.
type standing struct {
	read                               func() Standing
	leader, epoch, replicas, forwarded *prometheus.Desc
}

func newStanding(read func() Standing) standing {
	labels := []string{"replica"}
	return standing{
		read:   read,
		leader: prometheus.NewDesc("brokerd_replica_leader", "1 if this replica leads, else 0.", labels, nil),
		epoch: prometheus.NewDesc("brokerd_replica_epoch",
			"Number of the leader, as far as this replica knows. It rises with each change of the lead.", labels, nil),
		replicas: prometheus.NewDesc("brokerd_replicas", "Replicas in the list: present, or silent for more than 30 s.",
			append(labels, "state"), nil),
		forwarded: prometheus.NewDesc("brokerd_replica_forwarded_total",
			"Connections of clients that this replica has forwarded to the leader.", labels, nil),
	}
}

// Describe implements prometheus.Collector.
func (s standing) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.leader, s.epoch, s.replicas, s.forwarded} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s standing) Collect(to chan<- prometheus.Metric) {
	is := s.read()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, value, append([]string{is.Replica}, labels...)...)
	}
	leads := 0.0
	if is.Leads {
		leads = 1
	}
	send(s.leader, prometheus.GaugeValue, leads)
	send(s.epoch, prometheus.GaugeValue, float64(is.Epoch))
	send(s.replicas, prometheus.GaugeValue, float64(is.Present), "present")
	send(s.replicas, prometheus.GaugeValue, float64(is.Silent), "silent")
	send(s.forwarded, prometheus.CounterValue, float64(is.Forwarded))
}
