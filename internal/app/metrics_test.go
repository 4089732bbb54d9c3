package app_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/metrics"
)

// scrape reads the metrics as Prometheus does.
func scrape(t *testing.T, b *apptest.Broker) (map[string]*dto.MetricFamily, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	out, err := client.Get(fmt.Sprintf("http://%s/metrics", b.Metrics()))
	apptest.NoError(t, err)
	defer func() { _ = out.Body.Close() }()
	text, err := io.ReadAll(out.Body)
	if err != nil || out.StatusCode != http.StatusOK {
		t.Fatalf("%d %v: %.200s", out.StatusCode, err, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	apptest.NoError(t, err)
	return families, string(text)
}

// value returns that of a series, written as name or name{label=value,…}; of a histogram how many it has observed, and with
// :sum their sum. -1 if there is none.
func value(families map[string]*dto.MetricFamily, series string) float64 {
	series, sum := strings.CutSuffix(series, ":sum")
	name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	for _, m := range families[name].GetMetric() {
		var have []string
		for _, l := range m.GetLabel() {
			have = append(have, l.GetName()+"="+l.GetValue())
		}
		switch {
		case strings.Join(have, ",") != labels:
		case m.Histogram != nil && sum:
			return m.Histogram.GetSampleSum()
		case m.Histogram != nil:
			return float64(m.Histogram.GetSampleCount())
		case m.Counter != nil:
			return m.Counter.GetValue()
		default:
			return m.Gauge.GetValue()
		}
	}
	return -1
}

func withMetrics(c *app.Config) { c.Metrics = "127.0.0.1:0" }

func TestMetrics_TellWhatHasHappened(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(withMetrics))
	ctx := patient(t)
	lead, builder := b.Registered("lead", "lead"), b.Registered("builder-1", "builder")
	b.Registered("full", "")
	leads, builds := pb.NewMessageServiceClient(lead), pb.NewMessageServiceClient(builder)
	must := func(err error) {
		t.Helper()
		apptest.NoError(t, err)
	}
	sendTo := func(target *pb.Target, reach pb.Reach) {
		t.Helper()
		_, err := leads.SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{Target: target, Reach: reach}}})
		must(err)
	}

	_, err := pb.NewTaskServiceClient(lead).CreateTasks(ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "a task"}}})
	must(err)

	// A call takes 10 s for a message, a stream 5 s for the next; the one after that is dead, and one is being worked on.
	for range 4 {
		send(t, leads, "builder-1")
	}
	claimed, err := builds.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 1})
	must(err)
	b.Clock.Advance(10 * time.Second)
	_, err = builds.AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{claimed.GetClaims()[0].GetClaimId()}})
	must(err)
	stream, err := builds.Claim(ctx)
	must(err)
	must(stream.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{}}))
	settle := func(settled *pb.ClaimRequest) {
		t.Helper()
		must(stream.Send(settled))
	}
	deliver := func() string {
		t.Helper()
		for {
			in, err := stream.Recv()
			must(err)
			if d := in.GetDeliver().GetClaims(); len(d) > 0 {
				return d[0].GetClaimId()
			}
		}
	}
	id := deliver()
	b.Clock.Advance(5 * time.Second)
	settle(&pb.ClaimRequest{Acks: []string{id}})
	id = deliver()
	settle(&pb.ClaimRequest{Nacks: []*pb.Nack{{ClaimId: id, Fatal: true, Error: "no"}}})
	deliver()

	// What waits, the oldest for 7 s.
	role := &pb.Target{To: &pb.Target_Role{Role: "tester"}}
	sendTo(role, 0)
	b.Clock.Advance(4 * time.Second)
	sendTo(role, 0)
	sendTo(&pb.Target{To: &pb.Target_Channel{Channel: "news"}}, pb.Reach_REACH_ONE)
	b.Clock.Advance(3 * time.Second)

	// Refusals: of a call, of an item of a stream, of a copy.
	_, err = leads.GetMessage(ctx, &pb.GetMessageRequest{Id: "999999"})
	if err == nil {
		t.Fatal("found")
	}
	sends, err := leads.Send(ctx)
	must(err)
	must(sends.Send(&pb.SendRequest{Messages: []*pb.Message{{Target: &pb.Target{To: &pb.Target_Agent{Agent: "nobody"}}}}}))
	_, err = sends.Recv()
	must(err)
	limit := int64(1)
	_, err = b.Root().ConfigureSession(ctx, &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{MailboxLimit: &limit}})
	must(err)
	send(t, leads, "full")
	send(t, leads, "full")

	got, _ := scrape(t, b)
	for series, want := range map[string]float64{
		"brokerd_mailbox_waiting{kind=agent}":                                 1,
		"brokerd_mailbox_waiting{kind=role}":                                  2,
		"brokerd_mailbox_waiting{kind=channel}":                               1,
		"brokerd_mailbox_claimed{kind=agent}":                                 1,
		"brokerd_mailbox_claimed{kind=role}":                                  0,
		"brokerd_mailbox_claimed{kind=channel}":                               0,
		"brokerd_mailbox_oldest_age_seconds{kind=agent}":                      0,
		"brokerd_mailbox_oldest_age_seconds{kind=role}":                       7,
		"brokerd_mailbox_oldest_age_seconds{kind=channel}":                    3,
		"brokerd_agents{health=ok}":                                           3,
		"brokerd_agents{health=failed}":                                       0,
		"brokerd_dead_letters":                                                1,
		"brokerd_claim_to_ack_seconds":                                        2,
		"brokerd_claim_to_ack_seconds:sum":                                    15,
		"brokerd_open_streams{method=MessageService/Claim}":                   1,
		"brokerd_open_streams{method=MessageService/Send}":                    1,
		"brokerd_calls_total{code=NotFound,method=MessageService/GetMessage}": 1,
		"brokerd_calls_total{code=OK,method=MessageService/SendMessages}":     9,
		"brokerd_refusals_total{reason=MESSAGE_NOT_FOUND}":                    1,
		"brokerd_refusals_total{reason=AGENT_NOT_FOUND}":                      1,
		"brokerd_refusals_total{reason=MAILBOX_FULL}":                         1,
		"brokerd_failed_commits_total":                                        0,
		"brokerd_writer_waiting":                                              0,
		"brokerd_build_info{version=test}":                                    1,
		"brokerd_work_total{kind=task,outcome=created}":                       1,
		"brokerd_artifact_bytes_total{direction=upload}":                      0,
	} {
		if got := value(got, series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	for _, series := range []string{"brokerd_commit_seconds", "brokerd_batch_functions", "brokerd_batch_rows", "brokerd_batch_rows:sum",
		"brokerd_database_bytes", "go_goroutines"} {
		if value(got, series) <= 0 {
			t.Errorf("%s is %v", series, value(got, series))
		}
	}
	status, err := b.Root().GetStatus(ctx, &pb.GetStatusRequest{})
	must(err)
	if commits := value(got, "brokerd_commit_seconds"); commits != float64(status.GetCommits()) {
		t.Errorf("%v commits, and %d in the status", commits, status.GetCommits())
	}

	// Streams that end are counted off.
	must(sends.CloseSend())
	for err == nil {
		_, err = sends.Recv()
	}
	for value(got, "brokerd_open_streams{method=MessageService/Send}") != 0 {
		got, _ = scrape(t, b)
	}
	if n := value(got, "brokerd_calls_total{code=OK,method=MessageService/Send}"); n != 1 {
		t.Errorf("%v streams have ended", n)
	}
}

func TestMetrics_HaveConventionalNamesAndAreDocumented(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(withMetrics))
	smallLoad(t, b)
	_, page := scrape(t, b)
	follower := httptest.NewRecorder()
	standing := func() metrics.Standing { return metrics.Standing{Replica: "127.0.0.1:1"} }
	metrics.Follower(zap.NewNop(), "test", standing).ServeHTTP(follower, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	got := map[string]bool{}
	for _, page := range []string{page, follower.Body.String()} {
		problems, err := promlint.New(strings.NewReader(page)).Lint()
		apptest.NoError(t, err)
		for _, p := range problems {
			if strings.HasPrefix(p.Metric, "brokerd_") {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^# TYPE (\w+) `).FindAllStringSubmatch(page, -1) {
			got[m[1]] = true
		}
	}
	text, err := os.ReadFile("../../docs/observe.md")
	apptest.NoError(t, err)
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(brokerd_[a-z_]+)").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, m[1])
		if !got[m[1]] {
			t.Errorf("%s is documented, and missing", m[1])
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "brokerd_") && !slices.Contains(documented, name) {
			t.Errorf("%s is not documented", name)
		}
	}
}

func TestMetrics_AreReadOnceASecond(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(withMetrics))
	leads := b.Agent("lead", "")
	b.Registered("builder-1", "")
	waiting := func() float64 {
		t.Helper()
		got, _ := scrape(t, b)
		return value(got, "brokerd_mailbox_waiting{kind=agent}")
	}
	if n := waiting(); n != 0 {
		t.Errorf("%v wait", n)
	}
	send(t, leads, "builder-1")
	b.Clock.Advance(999 * time.Millisecond)
	if n := waiting(); n != 0 {
		t.Errorf("within the second: %v wait", n)
	}
	b.Clock.Advance(time.Millisecond)
	if n := waiting(); n != 1 {
		t.Errorf("after a second: %v wait", n)
	}
}

func TestMetrics_OldestLooksPastWhatIsClaimedAndPriority(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(withMetrics))
	leads := b.Agent("lead", "")
	builds := b.Agent("builder-1", "")
	send(t, leads, "builder-1")
	apptest.Must(t, builds.ClaimMessages, &pb.ClaimMessagesRequest{Max: 1})
	b.Clock.Advance(time.Second)
	for _, priority := range []int32{1, 10} {
		for _, target := range []*pb.Target{{To: &pb.Target_Agent{Agent: "builder-1"}}, {To: &pb.Target_Role{Role: "tester"}}} {
			apptest.Must(t, leads.SendMessages,
				&pb.SendMessagesRequest{Messages: []*pb.Message{{Target: target, Priority: priority}}})
		}
		b.Clock.Advance(time.Second)
	}
	got, _ := scrape(t, b)
	for _, kind := range []string{"agent", "role"} {
		if age := value(got, "brokerd_mailbox_oldest_age_seconds{kind="+kind+"}"); age != 2 {
			t.Errorf("%s: %v s", kind, age)
		}
	}
}
