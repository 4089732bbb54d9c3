package browsertest

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

const (
	operator = pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR
	observer = pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER
)

// views returns the ids of all views in the order of their keys.
func (p *tab) views() []string {
	p.t.Helper()
	return value[[]string](p, `(await import('/ui/app.js')).views.map((v) => v.id)`)
}

func TestPolicy_PageRefusesMarkupAndReportsIt(t *testing.T) {
	t.Parallel()
	p := open(newTeam(t), operator, "attention")
	for _, attempt := range []string{
		`document.body.insertAdjacentHTML('beforeend', '<b>markup</b>')`,
		`document.body.setAttribute('onclick', 'window.hacked = 1')`,
		`document.body.append(Object.assign(document.createElement('script'), { text: 'window.hacked = 1' }))`,
		`setTimeout('window.hacked = 1')`,
	} {
		if got := value[string](p, `(() => { try { `+attempt+`; return 'done' } catch (e) { return e.name } })()`); got != "TypeError" {
			t.Errorf("%s: %s", attempt, got)
		}
		p.await(`problems.length === 1 && problems.pop().startsWith('policy: require-trusted-types-for')`)
	}
}

// live is true when the page shows a frame at a revision or a later one.
const live = `+one('[data-connection="live"]').textContent.match(/rev (\d+)/)[1] >= a`

// publish publishes an event and returns its revision.
func (m *team) publish(summary string) int64 {
	m.t.Helper()
	return call(m, "lead", pb.NewEventServiceClient, pb.EventServiceClient.PublishEvent,
		&pb.PublishEventRequest{Type: "test.marker", Summary: summary}).GetRevision()
}

func TestTabs_TenAreLiveWithOneStream(t *testing.T) {
	t.Parallel()
	m := newTeam(t, apptest.WithMetrics())
	base := "http://" + m.TCP()
	store := newTab(t, browser(t), base, chromedp.WithNewBrowserContext()) // stays empty
	var tabs []*tab
	var views []string
	for i := range 10 {
		p := newTab(t, store.ctx, base)
		if i == 0 {
			p.signIn(m, operator)
			views = p.views()
		}
		p.load("/#/"+views[i%len(views)], views[i%len(views)])
		tabs = append(tabs, p)
	}
	all := func(revision int64) {
		t.Helper()
		for _, p := range tabs {
			p.await(live, revision)
		}
		const open = `brokerd_open_streams{method="AdminService/WatchOverview"} 1`
		page := metrics(m)
		// The broker may not know yet that the stream of a closed tab has ended.
		for end := time.Now().Add(patience / 2); !strings.Contains(page, open+"\n"); page = metrics(m) {
			if time.Now().After(end) {
				t.Fatalf("the metrics do not have %q:\n%s", open, page)
			}
		}
	}
	all(m.publish("one"))
	tabs[0].close() // it has the stream
	tabs = tabs[1:]
	all(m.publish("two"))
}

// metrics returns the page of the broker's metrics.
func metrics(m *team) string {
	m.t.Helper()
	r, err := http.NewRequestWithContext(m.ctx, http.MethodGet, "http://"+m.Metrics()+"/metrics", http.NoBody)
	if err != nil {
		m.t.Fatal(err)
	}
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		m.t.Fatal(err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}
