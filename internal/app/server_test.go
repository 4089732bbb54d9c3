package app_test

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
)

func TestServer_StatusMetricsAndLogSayWhatConfirmedMeans(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.WarnLevel)
	url := postgrestest.Database(t)
	b := apptest.Start(t, apptest.With(func(c *app.Config) {
		c.Store, c.Metrics, c.Log = url, "127.0.0.1:0", zap.New(core)
	}))
	const meaning = "in the memory of PostgreSQL's machine: it has fsync = off" // as the servers of tests have
	status := apptest.Must(t, b.Root().GetStatus, &pb.GetStatusRequest{})
	if !strings.HasPrefix(status.GetStore(), "postgres://broker@/test_") || status.GetConfirmed() != meaning ||
		status.GetDatabaseBytes() == 0 || status.GetSync() != "full" {
		t.Errorf("got %v", status)
	}
	families, _ := scrape(t, b)
	for series, least := range map[string]float64{
		"brokerd_database_server{standby=none}": 1, "brokerd_database_round_trips_total": 2, "brokerd_database_bytes": 1 << 20,
	} {
		if got := value(families, series); got < least {
			t.Errorf("%s is %v", series, got)
		}
	}
	warned := logged.FilterMessage("the database has no synchronous standby").All()
	if len(warned) != 1 || warned[0].ContextMap()["confirmed_is"] != meaning {
		t.Errorf("the log has %v", logged.All())
	}
}

// A broker that makes no changes finds out by itself that its database is gone, and that it is back.
func TestServer_ReadinessFollowsTheDatabase(t *testing.T) {
	t.Parallel()
	server := postgrestest.Own(t)
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.Store, c.Metrics = server.URL("postgres"), "127.0.0.1:0"
	}))
	await := func(code int, reason string) {
		t.Helper()
		for {
			got, text := probe(t, b.Metrics(), "/readyz")
			if got == code && strings.Contains(text, reason) {
				return
			}
			if t.Context().Err() != nil {
				t.Fatalf("/readyz: %d %q, want %d %q", got, text, code, reason)
			}
		}
	}
	await(http.StatusOK, "ready")
	server.End(syscall.SIGINT)
	b.Clock.Advance(11 * time.Second)
	await(http.StatusServiceUnavailable, "lost its connection")
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	await(http.StatusOK, "ready")
}
