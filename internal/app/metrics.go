package app

import (
	"context"
	"fmt"
	"net/http"

	"brokerd/internal/agents"
	"brokerd/internal/gauges"
	"brokerd/internal/metrics"
	"brokerd/internal/rpc"
	"brokerd/internal/store"
)

// newMetrics returns nil if metrics are not served: then nothing is observed.
func newMetrics(c Config) *metrics.Metrics {
	if c.Metrics == "" {
		return nil
	}
	return metrics.New(c.Clock, c.Log.Named("metrics"), c.Version)
}

// serveMetrics serves the metrics and the health checks if an address is given. Like the profiles,
// they require no credential, so they are served on this machine alone.
func (a *App) serveMetrics(m *metrics.Metrics, source metrics.Source, health *probes) error {
	if m == nil {
		return nil
	}
	m.Read(source)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler())
	mux.HandleFunc("GET /healthz", healthz)
	mux.HandleFunc("GET /readyz", health.readyz)
	if a.front != nil {
		m.Replica(a.front.standing)
		a.front.answerBy(a, mux)
		return nil
	}
	l, err := rpc.Listen(a.config.Metrics, rpc.LoopbackAlways)
	if err != nil {
		return err
	}
	a.metrics = rpc.Address(l)
	a.serveHTTP("metrics", l, mux)
	return nil
}

// measures are what the metrics read when they are asked for.
type measures struct {
	*store.Store
	agents *agents.Presence
	disk   func() (float64, error)
}

// DiskUsed implements metrics.Source.
func (m measures) DiskUsed() (float64, error) { return m.disk() }

// Agents implements metrics.Source.
func (m measures) Agents() map[string]int {
	n := m.agents.Census()
	return map[string]int{"ok": n.OK, "late": n.Late, "failed": n.Failed, "stopped": n.Stopped}
}

// Mail implements metrics.Source.
func (m measures) Mail(ctx context.Context) (metrics.Mail, error) {
	found, dead, err := gauges.Mail(ctx, m.Store)
	if err != nil {
		return metrics.Mail{}, fmt.Errorf("read mailboxes: %w", err)
	}
	mail := metrics.Mail{Dead: dead}
	for _, kind := range found {
		mail.Kinds = append(mail.Kinds, metrics.Kind(kind))
	}
	return mail, nil
}
