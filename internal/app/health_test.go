package app_test

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// probe asks for a health check and returns its status code and the first line of its answer.
func probe(t *testing.T, address, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	out, err := client.Get("http://" + address + path)
	apptest.NoError(t, err)
	defer func() { _ = out.Body.Close() }()
	text, err := io.ReadAll(out.Body)
	apptest.NoError(t, err)
	line, _, _ := strings.Cut(string(text), "\n")
	return out.StatusCode, line
}

// wantProbes checks that the process is up, and how ready it is; reason is a part of the answer.
func wantProbes(t *testing.T, address string, ready int, reason string) {
	t.Helper()
	if code, text := probe(t, address, "/healthz"); code != http.StatusOK || text != "ok" {
		t.Errorf("/healthz: %d %q", code, text)
	}
	if code, text := probe(t, address, "/readyz"); code != ready || !strings.Contains(text, reason) {
		t.Errorf("/readyz: %d %q, want %d %q", code, text, ready, reason)
	}
}

func TestHealth_NotReadyWhileTheDiskIsTooFullForSends(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "a server that answers while the test's clock jumps seems to be silent")
	var percent atomic.Int64
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(withMetrics), apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) { return float64(percent.Load()) / 100, nil }
	}))
	wantProbes(t, b.Metrics(), http.StatusOK, "ready")
	for _, c := range []struct {
		percent int64
		ready   int
		reason  string
	}{{86, http.StatusOK, "ready"}, {96, http.StatusServiceUnavailable, "96 % full"}, {50, http.StatusOK, "ready"}} {
		percent.Store(c.percent)
		b.Clock.Advance(10 * time.Second)
		wantProbes(t, b.Metrics(), c.ready, c.reason)
	}
}

func TestHealth_NotReadyWithADamagedDatabase(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	testkit.Ruin(t, filepath.Join(dir, store.DatabaseFile), "messages")
	a := run(t, app.Config{Dir: dir, Metrics: "127.0.0.1:0"})
	// The check meets the damage, if the check in the background has not done so before.
	apptest.Must(t, pb.NewAdminServiceClient(dial(t, a)).CheckDatabase, &pb.CheckDatabaseRequest{})
	wantProbes(t, a.Metrics(), http.StatusServiceUnavailable, "the database is damaged")
}

func TestHealth_NotReadyWhileTheBrokerStops(t *testing.T) {
	t.Parallel()
	a := run(t, app.Config{Dir: folder(t), Metrics: "127.0.0.1:0", StopTimeout: apptest.Patience})
	ctx, cancel := context.WithCancel(patient(t))
	defer cancel()
	// A stream that the broker does not end delays the stop.
	conn := dial(t, a)
	stream, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(stream.Recv()))
	wantProbes(t, a.Metrics(), http.StatusOK, "ready")
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop(context.Background()) }()
	for code := http.StatusOK; code == http.StatusOK; {
		code, _ = probe(t, a.Metrics(), "/readyz")
	}
	wantProbes(t, a.Metrics(), http.StatusServiceUnavailable, "the broker stops")
	cancel()
	_ = conn.Close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
