package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/zap"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/metrics"
)

const deployed = "../../deploy"

// A panel is one of Grafana's.
type panel struct {
	ID         int
	Type       string
	Title      string
	GridPos    *struct{ X, Y, W, H int }
	Datasource *struct{ Type, UID string }
	Targets    []struct{ RefID, Expr string }
}

// A dashboard has the fields without which Grafana does not import or show a dashboard.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Time          *struct{ From, To string }
	Templating    struct {
		List []struct{ Name, Type string }
	}
	Panels []panel
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deployed, "grafana", "brokerd.json"))
	apptest.NoError(t, err)
	apptest.NoError(t, json.NewDecoder(bytes.NewReader(text)).Decode(&d))
	return d
}

func TestDashboard_HasTheFieldsThatGrafanaNeeds(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 30 || d.Time == nil || d.Time.From == "" || d.Time.To == "" {
		t.Errorf("the dashboard lacks uid, title, schemaVersion or time: %+v", d)
	}
	variables := map[string]string{}
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Type
	}
	if variables["datasource"] != "datasource" || variables["instance"] != "query" {
		t.Errorf("the variables are %v", variables)
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if p.ID == 0 || ids[p.ID] || p.Title == "" || p.GridPos == nil || p.GridPos.W < 1 || p.GridPos.H < 1 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d %q lacks an id of its own, a title or a place", p.ID, p.Title)
			continue
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := cells[cell]; other != "" {
					t.Fatalf("%q overlaps %q", p.Title, other)
				}
				cells[cell] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource == nil || p.Datasource.Type != "prometheus" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%q lacks the data source or a query", p.Title)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if q.Expr == "" || q.RefID == "" || refs[q.RefID] {
				t.Errorf("%q has a query without text or without a name of its own", p.Title)
			}
			refs[q.RefID] = true
			if !strings.Contains(q.Expr, `instance=~"$instance"`) {
				t.Errorf("%q does not choose the instance: %s", p.Title, q.Expr)
			}
		}
	}
}

// expressions returns the queries of the dashboard and of the alert rules, by panel or alert.
func expressions(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			all["panel "+p.Title] = append(all["panel "+p.Title], q.Expr)
		}
	}
	text, err := os.ReadFile(filepath.Join(deployed, "prometheus", "alerts.yml"))
	apptest.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Expr        string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	apptest.NoError(t, yaml.Unmarshal(text, &file))
	tests, err := os.ReadFile(filepath.Join(deployed, "prometheus", "alerts_test.yml"))
	apptest.NoError(t, err)
	manual, err := os.ReadFile("../../docs/observe.md")
	apptest.NoError(t, err)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = []string{r.Expr}
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s lacks a severity, a summary or a description", r.Alert)
			}
			if !regexp.MustCompile(`(?m)^ +alertname: ` + r.Alert + `\n +exp_alerts:`).Match(tests) {
				t.Errorf("no unit test expects %s", r.Alert)
			}
			if !strings.Contains(string(manual), "`"+r.Alert+"`") {
				t.Errorf("docs/observe.md does not list %s", r.Alert)
			}
		}
	}
	return all
}

var (
	selector = regexp.MustCompile(`\b((?:brokerd|process|go)_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	grouping = regexp.MustCompile(`by \(([^)]*)\)`)
)

func TestDashboardAndAlerts_NameMetricsAndLabelsThatTheBrokerHas(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(withMetrics))
	smallLoad(t, b)
	families, _ := scrape(t, b)
	maps.Copy(families, metricsOfAReplica(t))
	used := 0
	for name, queries := range expressions(t) {
		for _, query := range queries {
			var labels []string
			for _, found := range selector.FindAllStringSubmatch(query, -1) {
				used++
				has, ok := labelsOf(families, found[1])
				if !ok {
					t.Errorf("%s: the broker has no metric %s", name, found[1])
				}
				labels = append(labels, has...)
				for _, m := range matcher.FindAllStringSubmatch(found[2], -1) {
					if !slices.Contains(has, m[1]) {
						t.Errorf("%s: %s has no label %s", name, found[1], m[1])
					}
				}
			}
			for _, by := range grouping.FindAllStringSubmatch(query, -1) {
				for label := range strings.SplitSeq(by[1], ",") {
					if !slices.Contains(labels, strings.TrimSpace(label)) {
						t.Errorf("%s: no metric of the query has the label %s", name, label)
					}
				}
			}
		}
	}
	if used < 50 {
		t.Errorf("only %d metrics were found in the queries", used)
	}
}

// metricsOfAReplica returns the metrics that each replica has.
func metricsOfAReplica(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	read := func() metrics.Standing { return metrics.Standing{Replica: "127.0.0.1:7423"} }
	out := httptest.NewRecorder()
	metrics.Follower(zap.NewNop(), "test", read).
		ServeHTTP(out, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(out.Body)
	apptest.NoError(t, err)
	return families
}

// labelsOf returns the labels that all series of a metric have, with those that Prometheus adds.
func labelsOf(families map[string]*dto.MetricFamily, name string) ([]string, bool) {
	labels := []string{"instance", "job"}
	f := families[name]
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && families[base].GetType() == dto.MetricType_HISTOGRAM {
			f = families[base]
			if suffix == "_bucket" {
				labels = append(labels, "le")
			}
		}
	}
	if f == nil {
		return nil, false
	}
	for _, l := range f.GetMetric()[0].GetLabel() {
		labels = append(labels, l.GetName())
	}
	return labels, true
}

// smallLoad makes every metric of the broker have a series.
func smallLoad(t *testing.T, b *apptest.Broker) {
	t.Helper()
	lead, worker := mailOf(t, b.Registered("lead", "")), mailOf(t, b.Registered("worker", ""))
	late := typed("worker", "input")
	late.Ttl = durationpb.New(time.Minute)
	lead.send(typed("worker", "task_assignment"), typed("worker", "task_progress"))
	ids := worker.claim(2)
	apptest.Must(t, worker.AckMessages, &pb.AckMessagesRequest{Ids: ids[:1]})
	apptest.Must(t, worker.NackMessages, &pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: ids[1], Fatal: true}}})
	lead.send(late)
	apptest.Must(t, b.Actor("default", "lead").CreateTasks,
		&pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "a task"}}})
	ctx, cancel := context.WithCancel(patient(t))
	t.Cleanup(cancel)
	stream, err := worker.Claim(ctx)
	apptest.NoError(t, err)
	apptest.NoError(t, stream.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{Types: []string{"none"}}}))
	apptest.NoError(t, apptest.Err(stream.Recv()))
	b.Clock.Advance(2 * time.Minute)
	awaitSeries(t, b, "brokerd_messages_expired_total{class=conversation,session=default}", 1)
}
