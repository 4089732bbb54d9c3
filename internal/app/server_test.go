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
	"brokerd/internal/testkit"
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
	// await waits while the broker's clock goes on, and asks again each time.
	await := func(code int, reason string) {
		t.Helper()
		for until := time.Now().Add(testkit.Patience); ; {
			got, text := probe(t, b.Metrics(), "/readyz")
			if got == code && strings.Contains(text, reason) {
				return
			}
			if time.Now().After(until) {
				t.Fatalf("/readyz: %d %q, want %d %q", got, text, code, reason)
			}
			b.Clock.Advance(11 * time.Second)
		}
	}
	await(http.StatusOK, "ready")
	server.End(syscall.SIGINT)
	await(http.StatusServiceUnavailable, "lost its connection")
	apptest.NoError(t, server.Restart())
	await(http.StatusOK, "ready")

	admin := server.URL("postgres") + "&default_transaction_read_only=off"
	for _, want := range []struct {
		text, reason string
		code         int
	}{{`SET default_transaction_read_only = on`, "takes no changes", http.StatusServiceUnavailable},
		{`RESET default_transaction_read_only`, "ready", http.StatusOK}} {
		apptest.NoError(t, postgrestest.Run(admin, `ALTER SYSTEM `+want.text))
		apptest.NoError(t, postgrestest.Run(admin, `SELECT pg_reload_conf()`))
		await(want.code, want.reason)
	}
}
