package browsertest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// Texts that would run a script or hide others if a page took them for markup.
const (
	image  = `<img src=x onerror="window.hacked=1">`
	script = `</script><script>window.hacked=1</script>`
	// turned has marks that show "txt.exe" as "exe.txt".
	turned = "\u202etxt.exe\u2067"
	hidden = "\u200b\ufeff" // have no width
	evil   = image + script + turned + hidden
)

// slip is a path with markup, in a script from right to left, that locks and artifacts accept.
const slip = `src/<img src=x onerror="window.hacked=1">/שלום`

// long is the longest line without a place to break it.
var long = strings.Repeat("W", 512)

// infect gives the team hostile text in every field that agents write, and returns the id of a message.
func (m *team) infect() string {
	m.t.Helper()
	call(m, "builder-2", pb.NewAgentServiceClient, pb.AgentServiceClient.RegisterAgent, &pb.RegisterAgentRequest{
		Role: "builder", Lease: durationpb.New(7 * 24 * 60 * 60 * 1e9), DisplayName: evil, Description: evil,
		Worktree: evil, Labels: map[string]string{evil: evil}, Capabilities: []string{"go"},
	})
	call(m, "builder-2", pb.NewAgentServiceClient, pb.AgentServiceClient.Heartbeat,
		&pb.HeartbeatRequest{Activity: new(evil), StatusReason: new(evil)})
	m.kill("builder-1", evil, evil)
	message := to("lead", evil)
	message.Body, message.Payload, message.Labels = evil, quote(m.t, evil), map[string]string{evil: evil}
	message.RequiresResponse, message.ThreadId, message.CorrelationId = true, evil, evil
	message.TaskId, message.OrderingKey, message.Artifacts = evil, evil, []string{slip}
	message.Files = []*pb.FileReference{{Path: slip}}
	id := m.send("builder-1", message, to("lead", long))[0]

	m.lock("builder-1", slip)
	call(m, "builder-2", pb.NewLockServiceClient, pb.LockServiceClient.AcquireLocks,
		&pb.AcquireLocksRequest{Paths: []string{slip}, KeepTicket: true, Reason: evil, Holder: image})
	m.token("reviewer", "review", evil)
	m.token("builder-1", "review", evil)

	call(m, "lead", pb.NewTaskServiceClient, pb.TaskServiceClient.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{
		{Id: "task", Title: evil, Description: evil, Labels: map[string]string{evil: evil}},
		{Id: "later", Title: long, DependsOn: []string{"task"}},
	}})
	m.do("builder-1", "task", true)
	m.vote(evil)
	m.review(evil)
	call(m, "builder-1", pb.NewHandoffServiceClient, pb.HandoffServiceClient.CreateHandoff, &pb.CreateHandoffRequest{
		Title: evil, ToAgent: "builder-2", Checklist: []string{evil},
		Content: &pb.HandoffContent{Background: evil, NextSteps: []string{evil}},
	})
	call(m, "builder-2", pb.NewBlockerServiceClient, pb.BlockerServiceClient.RaiseBlocker, &pb.RaiseBlockerRequest{Reason: evil})
	call(m, "lead", pb.NewEventServiceClient, pb.EventServiceClient.PublishEvent,
		&pb.PublishEventRequest{Type: "test.hostile", Summary: evil, Details: quote(m.t, map[string]string{evil: evil})})
	return id
}

func TestHostile_TextOfAgentsIsText(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	id := m.infect()
	p := open(m, operator, "attention")
	views := p.views()
	for _, view := range views {
		p.show(view)
		switch view {
		case "attention", "queues": // their texts are made by the broker
		case "locks":
			p.await(`reach(a)`, slip)
		default:
			p.await(`reach(a)`, image)
		}
		p.harmless()
		p.openRows(8, func() { p.harmless() })
	}
	p.show("timeline?open=message:" + id)
	p.await(`has(one('.panel'), a) && has(one('.panel'), b)`, evil, slip)
	p.harmless()
	for _, dialog := range []struct{ view, action, text string }{
		{"locks", "force-release", slip},
		{"locks", "revoke", evil},
		{"dead?error=" + url.QueryEscape(image), "redrive-all", image},
	} {
		p.show(dialog.view)
		p.act(`document`, dialog.action)
		p.await(`has(one('dialog[open]'), a)`, dialog.text)
		p.harmless()
		p.await(`press(one('dialog[open] [type=button]'))`)
	}
	p.show("conversations")
	const unknown = "<img src=x>"
	p.act(`document`, "send", "to", unknown, "subject", evil)
	p.await(`press(one('dialog[open] [data-confirm]'))`)
	p.await(`has(one('dialog[open] .failure'), a)`, unknown)
	p.harmless()
	p.await(`press(one('dialog[open] [type=button]'))`)
	// A link can name any object and any filter.
	for _, view := range views {
		text := url.QueryEscape(evil)
		p.show(view + "/" + url.PathEscape(evil) + "?q=" + text + "&open=message:" + text)
		p.await(`one('.panel .content')?.textContent.trim()`)
		p.harmless()
	}
}

func TestHostile_NamesWithMarkupAreRefused(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	_, session := pb.NewSessionServiceClient(m.Operator()).CreateSession(m.ctx, &pb.CreateSessionRequest{Name: image})
	_, token := pb.NewTokenServiceClient(m.Conn("lead")).AcquireToken(m.ctx,
		&pb.AcquireTokenRequest{Type: image, Scope: "x"})
	_, event := pb.NewEventServiceClient(m.Conn("lead")).PublishEvent(m.ctx, &pb.PublishEventRequest{Type: image})
	_, agent := pb.NewAgentServiceClient(m.Conn(image)).RegisterAgent(m.ctx, &pb.RegisterAgentRequest{})
	_, role := pb.NewAgentServiceClient(m.Conn("other")).RegisterAgent(m.ctx, &pb.RegisterAgentRequest{Role: image})
	for what, err := range map[string]error{
		"session": session, "token": token, "event": event, "agent": agent, "role": role,
	} {
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestHostile_APageMayNotFrameTheDashboard(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			fmt.Fprintf(w, `<iframe src="/own"></iframe><iframe src="http://%s/"></iframe>`, m.TCP())
		}
	}))
	defer other.Close()
	p := newTab(t, browser(t), other.URL, chromedp.WithNewBrowserContext())
	if err := chromedp.Do(p.ctx, chromedp.Navigate(other.URL)); err != nil {
		t.Fatal(err)
	}
	tree, err := chromedp.Call(p.ctx, page.GetFrameTree, cdp.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	var refused []string
	for _, child := range tree.FrameTree.ChildFrames {
		refused = append(refused, child.Frame.UnreachableURL)
	}
	if want := []string{"", "http://" + m.TCP() + "/"}; !slices.Equal(refused, want) {
		t.Errorf("the refused frames are %q, want %q", refused, want)
	}
}

// harmless checks that the page has no element that a text has made, and has run no script of a text.
func (p *tab) harmless() {
	p.t.Helper()
	if bad := value[[]string](p, `all('img, script:not([src="/ui/app.js"]), iframe, object, [onerror]').map((e) => e.outerHTML)`); len(bad) > 0 {
		p.t.Errorf("%s: text has become markup: %s", value[string](p, `location.hash`), bad)
	}
	if value[bool](p, `'hacked' in window`) {
		p.t.Errorf("%s: text has run as a script", value[string](p, `location.hash`))
	}
	if value[bool](p, `document.documentElement.scrollWidth > innerWidth`) {
		p.t.Errorf("%s: text has made the page wider than the window", value[string](p, `location.hash`))
	}
	if turned := value[[]string](p, turns); len(turned) > 0 {
		p.t.Errorf("%s: a text turns the text beside it: %q", value[string](p, `location.hash`), turned)
	}
}

// turns are the texts with marks of direction that are neither isolated nor alone in their block. The title
// of an SVG is a separate text.
const turns = `all('body *').flatMap((e) => [...e.childNodes]).filter((n) => {
	if (n.nodeType !== 3 || n.parentElement.localName === 'title') return false;
	if (!/[\u202a-\u202e\u2066-\u2069]/.test(n.data)) return false;
	for (let e = n.parentElement; ; e = e.parentElement) {
		const { display, unicodeBidi } = getComputedStyle(e);
		if (/isolate|plaintext/.test(unicodeBidi) && e.textContent.trim() === n.data.trim()) return false;
		if (!display.startsWith('inline')) return e.textContent.trim() !== n.data.trim();
	}
}).map((n) => n.parentElement.outerHTML.slice(0, 200))`

func TestHostile_LargestMessageIsShown(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	message := to("lead", "The largest message")
	message.Body = strings.Repeat("b", 256<<10-3) + "end"
	message.Payload = `"` + strings.Repeat("p", 256<<10-5) + `end"`
	for range 480 { // together nearly 1 MiB
		message.Artifacts = append(message.Artifacts, strings.Repeat("a", 1024))
	}
	id := m.send("builder-1", message)[0]
	p := open(m, operator, "timeline?open=message:"+id)
	p.await(`has(one('.panel'), a)`, "The largest message")
	for range 2 {
		p.await(`press(one('.panel [data-show=all][aria-expanded=false]'))`)
	}
	p.await(`has(one('.panel'), 'bend') && has(one('.panel'), 'pend"')`)
	p.await(live, m.publish("still live"))
}
