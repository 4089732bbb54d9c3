package bench_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bench"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newDaemon starts a broker and returns how to connect to it.
func newDaemon(t *testing.T) bench.Connect {
	t.Helper()
	dir, err := os.MkdirTemp("", "brokerd") // short: the socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	a, err := app.Start(t.Context(), app.Config{Dir: dir, StopTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	return func(ctx context.Context) (*client.Client, error) {
		return client.Dial(ctx, client.WithAddress(a.Addresses()[0]))
	}
}

// session returns a client in the session of the one bench run.
func session(t *testing.T, connect bench.Connect) *client.Client {
	t.Helper()
	c, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	sessions, err := c.Sessions().ListSessions(t.Context(), &pb.ListSessionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sessions.GetSessions() {
		if strings.HasPrefix(s.GetName(), "bench-") {
			return c.In(s.GetName())
		}
	}
	t.Fatal("there is no session bench-…")
	return nil
}

// status returns how the session of the one bench run stands.
func status(t *testing.T, connect bench.Connect) *pb.GetStatusResponse {
	t.Helper()
	r, err := session(t, connect).Admin().GetStatus(t.Context(), &pb.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRun_EveryWorkloadCountsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	connect := newDaemon(t)
	results, err := bench.Run(t.Context(), []bench.Broker{{Connect: connect}}, bench.Options{
		Workloads: []string{"agents", "pipelined", "numbered", "objects", "paced", "locks", "held", "contended", "tokens", "tasks", "state", "watch"},
		Duration:  200 * time.Millisecond, Size: 100, Held: 100, Changes: 100})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range results {
		names = append(names, r.Workload)
		if r.Count <= 0 || r.PerSecond <= 0 || r.Took < 200*time.Millisecond && r.Workload != "watch" || r.Rounds != 1 {
			t.Errorf("%+v", r)
		}
		if r.CPU <= 0 {
			t.Errorf("%s: no processor time of the broker", r.Workload)
		}
		if r.P50 <= 0 || r.P50 > r.P95 || r.P95 > r.P99 {
			t.Errorf("%s: %v, %v, %v", r.Workload, r.P50, r.P95, r.P99)
		}
		if shared := r.MostShare > 0; shared != (r.Workload == "contended") || r.LeastShare > 1 || shared && r.MostShare < 1 {
			t.Errorf("%s: shares %v to %v", r.Workload, r.LeastShare, r.MostShare)
		}
	}
	if want := []string{"agents", "pipelined", "numbered", "objects", "paced", "locks", "held", "contended", "tokens", "tasks", "state", "watch"}; !slices.Equal(names, want) {
		t.Errorf("workloads %v, want %v", names, want)
	}
	if s := status(t, connect); s.GetWaiting() != 0 || s.GetClaimed() != 0 || s.GetDead() != 0 || s.GetLocks()+s.GetTokensHeld()+s.GetTickets() != 0 {
		t.Errorf("left over: %v", s)
	}
}

func TestRun_BacklogStaysWhileConsumersAcknowledgeTheirPartOfWhatIsSent(t *testing.T) {
	t.Parallel()
	for workload, sendsPer := range map[string]int{"backlog": 2, "steady": 1} {
		t.Run(workload, func(t *testing.T) {
			t.Parallel()
			connect := newDaemon(t)
			const waiting, frame = 2000, 256
			results, err := bench.Run(t.Context(), []bench.Broker{{Connect: connect}}, bench.Options{
				Workloads: []string{workload}, Duration: 200 * time.Millisecond, Size: 100, Changes: 1, Waiting: waiting,
				Objects: true})
			if err != nil {
				t.Fatal(err)
			}
			r := results[0]
			if r.Count <= 0 || r.CPU <= 0 || r.P50 <= 0 || r.P50 > r.P99 {
				t.Errorf("%+v", r)
			}
			s := status(t, connect)
			left := int(s.GetWaiting() + s.GetClaimed())
			if acked := waiting + r.Count - left; acked < r.Count/sendsPer-frame || acked > r.Count/sendsPer {
				t.Errorf("%d of %d messages are left, so %d were acknowledged, and %d were sent", left, waiting+r.Count, acked, r.Count)
			}
			if r.Backlog < left || r.Backlog > left+frame { // the last results may not have been read
				t.Errorf("backlog of %d reported; %d are left", r.Backlog, left)
			}
		})
	}
}

func TestRun_ObjectsFitTheirType(t *testing.T) {
	t.Parallel()
	connect := newDaemon(t)
	// backlog sends its waiting messages even if there is no time for others
	_, err := bench.Run(t.Context(), []bench.Broker{{Connect: connect}}, bench.Options{
		Workloads: []string{"backlog"}, Duration: 50 * time.Millisecond, Size: 1024, Changes: 1, Waiting: 10, Objects: true})
	if err != nil {
		t.Fatal(err)
	}
	r, err := session(t, connect).Events().ListEvents(t.Context(), &pb.ListEventsRequest{PageSize: 1000,
		Filter: &pb.EventFilter{Types: []string{"message.sent", "message.type_unknown", "message.payload_invalid"}}})
	if err != nil || len(r.GetEvents()) == 0 {
		t.Fatalf("%d events, %v", len(r.GetEvents()), err)
	}
	for _, e := range r.GetEvents() {
		if !strings.HasPrefix(e.GetSummary(), "test_result to role:") {
			t.Fatalf("%s: %s", e.GetType(), e.GetSummary())
		}
	}
}

func TestRun_MakesCallsOverGRPCAndHTTPBesideDashboards(t *testing.T) {
	t.Parallel()
	connect := newDaemon(t)
	results, err := bench.Run(t.Context(), []bench.Broker{{Connect: connect}}, bench.Options{
		Workloads: []string{"read", "http-read", "send", "http-send"}, Duration: 100 * time.Millisecond, Size: 100,
		Changes: 1, Watchers: 3})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 4 {
		t.Fatalf("%+v", results)
	}
	sent := 2 * 8 // the messages that are read
	for _, r := range results {
		if r.Count <= 0 || r.CPU <= 0 || r.P50 <= 0 || r.P50 > r.P99 || r.MostShare != 0 {
			t.Errorf("%+v", r)
		}
		if strings.HasSuffix(r.Workload, "send") {
			sent += r.Count
		}
	}
	if s := status(t, connect); s.GetWaiting() != int64(sent) {
		t.Errorf("%d messages wait, and %d were sent", s.GetWaiting(), sent)
	}
}

func TestRun_BulkMeasuresABystanderBesideEachBurden(t *testing.T) {
	t.Parallel()
	results, err := bench.Run(t.Context(), []bench.Broker{{Connect: newDaemon(t)}}, bench.Options{
		Workloads: []string{"bulk"}, Duration: 200 * time.Millisecond, Size: 100, Changes: 1, Bulk: 100})
	if err != nil {
		t.Fatal(err)
	}
	var burdens []string
	for _, part := range results[0].Parts {
		burdens = append(burdens, part.Workload)
		if part.Count <= 0 || part.P50 <= 0 || part.P50 > part.P99 {
			t.Errorf("%+v", part)
		}
	}
	if want := []string{"quiet", "labels", "votes", "dependents", "leaver", "queues", "globs"}; !slices.Equal(burdens, want) {
		t.Errorf("burdens %v, want %v", burdens, want)
	}
}

func TestRun_BystanderMakesEachCallBesideABurden(t *testing.T) {
	t.Parallel()
	run := func(duration time.Duration) []bench.Result {
		t.Helper()
		results, err := bench.Run(t.Context(), []bench.Broker{{Connect: newDaemon(t)}}, bench.Options{
			Workloads: []string{"flood", "churn"}, Duration: duration, Size: 100, Changes: 1, Waiting: 500})
		if err != nil {
			t.Fatal(err)
		}
		if len(results) != 2 {
			t.Fatalf("%+v", results)
		}
		return results
	}
	results := run(200 * time.Millisecond)
	if results[1].Count == 0 { // on a slow machine, the first round of churn lasts longer
		results = run(20 * time.Second)
	}
	for _, r := range results {
		if r.Count <= 0 || r.CPU <= 0 {
			t.Errorf("%+v", r)
		}
		var calls []string
		for _, call := range r.Parts {
			calls = append(calls, call.Workload)
			if call.Count <= 0 || call.P50 <= 0 || call.P50 > call.P99 {
				t.Errorf("%s: %+v", r.Workload, call)
			}
		}
		if want := []string{"send", "claim", "ack", "heartbeat", "status"}; !slices.Equal(calls, want) {
			t.Errorf("%s: calls %v, want %v", r.Workload, calls, want)
		}
	}
}

func TestRun_FinishedMessagesComeFirst(t *testing.T) {
	t.Parallel()
	connect := newDaemon(t)
	_, err := bench.Run(t.Context(), []bench.Broker{{Connect: connect}}, bench.Options{
		Workloads: []string{"paced"}, Duration: 50 * time.Millisecond, Size: 100, Changes: 1, Finished: 500})
	if err != nil {
		t.Fatal(err)
	}
	c, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := c.Admin().CheckDatabase(t.Context(), &pb.CheckDatabaseRequest{})
	if err != nil || r.GetMessages() < 500 {
		t.Errorf("%d messages, %v; at least 500 were to be finished", r.GetMessages(), err)
	}
}

func TestRun_BurdensStayInTheirOwnMailboxes(t *testing.T) {
	t.Parallel()
	connect := newDaemon(t)
	const preload = 1250
	results, err := bench.Run(t.Context(), []bench.Broker{{Connect: connect}}, bench.Options{
		Workloads: []string{"pipelined"}, Duration: 100 * time.Millisecond, Rounds: 3, Size: bench.MinSize,
		Changes: 1, Preload: preload, Idle: 20, Subscribers: 2, Numbered: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 1 || results[0].Rounds != 3 || results[0].Count <= 0 {
		t.Fatalf("%+v", results)
	}
	if s := status(t, connect); s.GetWaiting() != preload || s.GetClaimed() != 0 {
		t.Errorf("%d waiting, %d claimed; %d were preloaded", s.GetWaiting(), s.GetClaimed(), preload)
	}
}

func TestRun_RefusesWhatItCannotMeasure(t *testing.T) {
	connect := func(context.Context) (*client.Client, error) { panic("must not connect") }
	for name, c := range map[string]struct {
		o    bench.Options
		says string
	}{
		"a payload without room for the time": {bench.Options{Duration: time.Second, Size: bench.MinSize - 1, Changes: 1}, "at least 18"},
		"an unknown workload":                 {bench.Options{Duration: time.Second, Size: 100, Changes: 1, Workloads: []string{"x"}}, "agents, pipelined, numbered"},
		"no duration":                         {bench.Options{Size: 100, Changes: 1}, "duration"},
	} {
		_, err := bench.Run(t.Context(), []bench.Broker{{Connect: connect}}, c.o)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestRun_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	connect := newDaemon(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := bench.Run(ctx, []bench.Broker{{Connect: connect}}, bench.Options{
		Duration: time.Hour, Size: 100, Changes: 1, Workloads: []string{"paced"}, Progress: func(string) { cancel() }})
	if err == nil {
		t.Fatal("no error")
	}
}
