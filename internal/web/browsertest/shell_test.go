package browsertest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	pb "brokerd/gen/brokerd/v1"
)

// The scripts and styles of the page have at most this many bytes with gzip.
const pageLimit = 60 << 10

func TestPage_BrowserReceivesLessThan60KiB(t *testing.T) {
	t.Parallel()
	p := open(newTeam(t), operator, "attention")
	const files = `performance.getEntriesByType('resource').filter((e) => /\.(js|css)$/.test(e.name))`
	p.await(files + `.some((e) => e.name.endsWith('/views/work.js'))`)
	n, size := value[int](p, files+`.length`), value[int](p, files+`.reduce((sum, e) => sum + e.encodedBodySize, 0)`)
	t.Logf("%d scripts and styles, %d bytes", n, size)
	if n < 10 || size < 10<<10 || size >= pageLimit {
		t.Errorf("the browser has received %d bytes in %d scripts and styles; the limit is %d", size, n, pageLimit)
	}
}

func TestSession_ChangesWhileTheConnectionIsBroken(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	call(m, "", pb.NewSessionServiceClient, pb.SessionServiceClient.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	r := newRelay(t, m.TCP())
	p := openAt(m, r.base(), operator, "team")
	p.await(live, m.publish("before"))
	r.to("")
	p.await(`shown(one('[data-banner="broken"]'))`)
	p.show("team?session=other") // the tab follows another session, and returns
	p.await(`one('[data-connection]:not([data-connection="live"])')`)
	p.show("team")
	r.to(m.TCP())
	p.await(live, m.publish("after"))
}

func TestAttention_SaysHowToBeginWhereNoAgentIsRegistered(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	call(m, "", pb.NewSessionServiceClient, pb.SessionServiceClient.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	p := open(m, operator, "attention?session=other")
	p.await(`has(one('.attention-first'), 'brokerctl setup claude-code') && has(one('.attention-first'), 'brokerctl demo --dashboard')`)
	p.show("attention")
	p.await(live, m.publish("a team at work"))
	p.await(`!one('.attention-first')`)
}

func TestReconnect_RepeatsTheCallsThatFailed(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.task("schema")
	r := newRelay(t, m.TCP())
	p := openAt(m, r.base(), operator, "work")
	p.await(`row('The task schema')`)
	p.await(live, m.publish("nothing changes after this"))
	r.to("")
	p.await(`shown(one('[data-banner="broken"]'))`)
	p.show("work/task:schema") // the call of the panel fails
	p.await(`has(one('.panel'), 'UNREACHABLE')`)
	r.to(m.TCP())
	p.await(`has(one('.panel'), 'The task schema') && !has(one('.panel'), 'UNREACHABLE')`)
}

func TestQueues_ShowEveryMessageOfSmallPages(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	const messages = 12
	for i := range messages { // a page has at most 3 MiB
		large := to("lead", fmt.Sprintf("Large %02d", i))
		large.Body = strings.Repeat("b", 256<<10-1)
		large.Payload = `"` + strings.Repeat("p", 256<<10-3) + `"`
		for range 480 {
			large.Artifacts = append(large.Artifacts, strings.Repeat("a", 1024))
		}
		m.send("builder-1", large)
	}
	p := open(m, operator, "queues/lead")
	p.await(`one('.panel .table').ariaRowCount === String(a + 1)`, messages)
	p.await(`reach(a)`, fmt.Sprintf("Large %02d", messages-1))
}

func TestMessage_PayloadKeepsTheDigitsOfItsNumbers(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	message := to("lead", "A large number")
	message.Payload = `{"n":12345678901234567890}`
	id := m.send("builder-1", message)[0]
	p := open(m, operator, "timeline?open=message:"+id)
	p.await(`has(one('.panel'), '12345678901234567890')`)
}

func TestLocks_ArrowsFoldTheTree(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.lock("builder-1", "src/auth/login.go")
	m.lock("builder-2", "src/web/page.go")
	p := open(m, operator, "locks")
	const active = `one('.table .active')`
	p.await(`row('login.go')`)
	value[bool](p, `(one('[role=treegrid]').focus(), true)`)
	for _, step := range []struct{ key, want string }{
		{kb.ArrowDown, `has(` + active + `, 'Paths')`},
		{kb.ArrowLeft, active + `.ariaExpanded === 'false' && !row('login.go')`},
		{kb.ArrowRight, active + `.ariaExpanded === 'true' && row('src/')`},
		{kb.ArrowRight, `has(` + active + `, 'src/') && ` + active + `.ariaLevel === '2'`},
		{kb.ArrowRight, `has(` + active + `, 'auth/')`},
		{kb.ArrowRight, `has(` + active + `, 'login.go')`},
		{kb.ArrowRight, `has(` + active + `, 'login.go')`},
		{kb.ArrowLeft, `has(` + active + `, 'auth/')`},
		{kb.ArrowLeft, active + `.ariaExpanded === 'false' && !row('login.go')`},
		{kb.ArrowLeft, `has(` + active + `, 'src/')`},
	} {
		p.keys(step.key)
		p.await(step.want)
	}
}

func TestDialog_EndsWithItsSession(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	call(m, "", pb.NewSessionServiceClient, pb.SessionServiceClient.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	p := open(m, operator, "conversations")
	p.act(`document`, "send", "to", "lead")
	p.show("conversations?session=other")
	p.await(`!one('dialog')`)
}

func TestSessions_ListHasNewOnesWhenItOpens(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	p := open(m, operator, "team")
	const names = `one('[aria-label=Session]').textContent`
	p.await(names + `.includes('default')`)
	call(m, "", pb.NewSessionServiceClient, pb.SessionServiceClient.CreateSession, &pb.CreateSessionRequest{Name: "newer"})
	p.await(`(one('[aria-label=Session]').focus(), true)`)
	p.await(names + `.includes('newer')`)
}

func TestTimeline_ShowsAnEventWithAnyDetails(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	revision := call(m, "lead", pb.NewEventServiceClient, pb.EventServiceClient.PublishEvent, &pb.PublishEventRequest{
		Type: "test.hostile", Summary: "It has odd details",
		Details: `{"agent":{"toString":1,"valueOf":1},"mailboxes":[["builder-1",{"toString":null}],7],"claims":{"split":1}}`,
	}).GetRevision()
	p := open(m, operator, fmt.Sprintf("timeline/%d", revision))
	p.await(`has(one('.panel'), 'It has odd details') && has(one('.panel'), 'valueOf')`)
}
