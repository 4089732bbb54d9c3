package browsertest

import (
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestDialog_NamesItsObjectAndTheMissingField(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.lock("builder-1", "src/auth.go")
	m.lock("builder-2", "src/auth.go")
	p := open(m, operator, "locks")
	p.act(`one('[data-block]')`, "force-release")
	texts := []string{"Force release src/auth.go", "builder-1 loses src/auth.go", "Reason, for builder-1 required"}
	for _, text := range texts {
		p.await(`has(one('dialog[open]'), a)`, text)
	}
	p.await(`press(one('dialog[open] [data-confirm]'))`)
	p.await(`has(one('dialog[open] .failure'), 'Reason, for builder-1') && document.activeElement.name === 'reason'`)
	p.await(`fill(document.activeElement, 'builder-1 has crashed')`)
	p.confirm()
	p.await(`has(one('.toasts'), 'Lock src/auth.go freed; builder-2 has it now')`)
}

func TestFinding_ButtonsSayWhomTheyConcern(t *testing.T) {
	t.Parallel()
	m := newTeam(t, apptest.WithFakeClock())
	m.token("builder-1", "deploy", "staging")
	m.token("builder-2", "deploy", "staging")
	m.Clock.Advance(6 * time.Minute) // the request waits for too long
	p := open(m, operator, "team/builder-2")
	for _, label := range []string{"Revoke from builder-1", "End the wait of builder-2"} {
		p.await(`all('.panel .attention-finding button').some((b) => b.textContent === a)`, label)
	}
	p.await(`has(one('.panel'), 'held by builder-1')`)
	p.await(`has(one('.panel .attention-finding'), 'the last call of builder-1 was 6m')`)
}

func TestFinding_LinksItsMessage(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	id := m.kill("builder-1", "Port the importer", "no such repository")
	p := open(m, operator, "attention")
	p.await(`press(one('li [data-name^="message:"]', row('1 dead letter')))`)
	p.await(`one('[data-message="' + a + '"]')`, id)
}

func TestSearch_SaysWhatItFiltersAndOpensTheOnlySuggestion(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	p := open(m, operator, "team")
	p.await(`row('lead')`)
	p.keys("/")
	p.await(`document.activeElement === one('.jump input')`)
	p.keys("nobody")
	p.await(`has(one('[data-view=team] .empty'), 'The search filters only this view.')`)
	p.await(`(document.activeElement.blur(), true)`)
	p.keys("/")
	p.await(`document.activeElement === one('.jump input')`)
	p.keys("lead") // replaces the selected text
	p.await(`one('.jump input').value === 'lead' && all('.jump li').length === 1`)
	p.keys(kb.Enter)
	p.await(`location.hash === '#/team/lead' && has(one('.panel h2'), 'lead')`)
}

func TestSend_SuggestsReceivers(t *testing.T) {
	t.Parallel()
	p := open(newTeam(t), operator, "conversations")
	p.act(`document`, "send")
	p.await(`['builder-1', 'role:builder', 'everyone'].every((to) => all('dialog[open] datalist option').some((o) => o.value === to))`)
}

func TestTimeline_FiltersWhileTheUserTypes(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	p := open(m, operator, "timeline")
	p.await(`row('agent.registered')`)
	p.await(`(one('[aria-label=Types]').focus(), true)`)
	p.keys("lock.* vote.*")
	p.await(`!row('agent.registered') && one('[aria-label=Types]').value === 'lock.* vote.*'`)
	m.lock("lead", "docs/plan.md")
	p.await(`row('lock.granted')`)
}

func TestNarrow_EachViewAndTheExitAreInReach(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.work()
	p := open(m, operator, "attention")
	if err := chromedp.Do(p.ctx, chromedp.EmulateViewport(400, 800)); err != nil {
		t.Fatal(err)
	}
	p.await(`innerWidth === 400`)
	const clipped = `all('nav a, nav .label, .foot button, .connection').filter((e) => {
		const { left, right, bottom, width } = e.getBoundingClientRect();
		return !shown(e) || left < 0 || right > 400 || bottom > 800 || width < 4 || e.scrollWidth > e.clientWidth + 1;
	}).map((e) => e.textContent)`
	if got := value[[]string](p, clipped); len(got) > 0 {
		t.Errorf("out of reach: %q", got)
	}
	p.await(`press(all('.foot button').find((b) => has(b, 'Sign out')))`)
	p.await(`has(one('[data-view=login]'), 'You are signed out.')`)
}

func TestPhone_ShowsTheFirstFindingAndWhatAgentsDo(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.send("lead", toRole("designer", "Draw a logo"))
	p := open(m, operator, "attention")
	if err := chromedp.Do(p.ctx, chromedp.EmulateViewport(390, 844)); err != nil {
		t.Fatal(err)
	}
	p.await(`one('.attention-finding') && innerWidth === 390`)
	if top := value[float64](p, `one('.attention-finding').getBoundingClientRect().top`); top > 250 {
		t.Errorf("the first finding begins at %v px; 250 are allowed", top)
	}
	p.show("team")
	p.await(`has(one('[role=columnheader]').parentElement, 'Role') && has(one('[role=columnheader]').parentElement, 'Does')`)
}

// bridgeReport is a bridge that cannot read its folder, as an operator reports it.
const bridgeReport = `{"Folder":"/srv/drop","Waits":[{"Action":"read the folder","Reason":"permission denied",` +
	`"Since":"2026-01-02T03:04:05Z"}]}`

func TestFinding_OfABridgeHasAButtonThatDeletesTheReport(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	call(m, "", pb.NewStateServiceClient, pb.StateServiceClient.PutState, &pb.PutStateRequest{
		Namespace: "bridge", Key: "health/1", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: bridgeReport}},
	})
	p := open(m, operator, "attention")
	p.act(`one('[data-row="bridge /srv/drop"]')`, "DeleteState")
	p.await(`has(one('dialog[open] h2'), 'Delete the report: bridge /srv/drop')`)
	p.await(`has(one('dialog[open] p'), 'it cannot read the folder: permission denied')`)
	p.confirm()
	p.await(`!one('[data-row="bridge /srv/drop"]')`)
}

// explained makes the page see one finding about an agent, and collects the calls that it makes.
const explained = `
const real = window.fetch;
window.made = [];
window.fetch = (path, options) => {
	if (path.startsWith('/v1/explain')) return Promise.resolve(Response.json({ findings: [{
		severity: 'error', subject: 'agent lead', summary: 'it is stuck', reasons: [], since: null, calls: [
			{ method: '/brokerd.v1.MessageService/Reply', request: { id: '7', message: { subject: 'Yes' } }, agent: 'lead',
				missing: ['message.body'], program: [] },
			{ method: '/brokerd.v1.DecisionService/Decide', request: { id: 'd-7', verdict: 'defer' }, agent: '', missing: ['until'], program: [] },
			{ method: '/brokerd.v1.AgentService/RegisterAgent', request: {}, agent: 'lead', missing: [], program: ['./lead.py', "it's"] },
			{ method: '/brokerd.v1.AgentService/GetAgent', request: { name: 'lead' }, agent: '', missing: [], program: [] },
		] }] }));
	if (!path.startsWith('/v1/call/MessageService/Reply')) return real(path, options);
	made.push([path, options.headers['Brokerd-Agent'], options.body].join(' '));
	return Promise.resolve(Response.json({}));
};`

func TestFinding_AsksForWhatACallMisses(t *testing.T) {
	t.Parallel()
	p := open(newTeam(t), operator, "attention")
	p.evaluate(explained)
	p.show("team/lead")
	const found = `one('.panel .attention-finding')`
	p.await(`one('code', `+found+`).textContent === a`, `./lead.py 'it'\''s'`)
	p.await(`has(` + found + `, 'brokerctl agent run starts it')`)
	if got := value[[]string](p, `all('.panel .attention-finding .action').map((b) => b.textContent)`); !slices.Equal(got, []string{"Reply of lead"}) {
		t.Errorf("buttons: %q", got)
	}
	p.act(found, "Reply")
	p.await(`has(one('dialog[open]'), 'it is stuck')`)
	p.await(`press(one('dialog[open] [data-confirm]'))`)
	p.await(`has(one('dialog[open] .failure'), 'Body')`)
	p.await(`fill(one('dialog[open] textarea[name="message.body"]'), 'It is done.')`)
	p.confirm()
	p.await(`made[0] === a`,
		`/v1/call/MessageService/Reply lead {"id":"7","message":{"subject":"Yes","body":"It is done."}}`)
}
