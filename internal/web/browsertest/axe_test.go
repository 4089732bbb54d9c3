package browsertest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	pb "brokerd/gen/brokerd/v1"
)

// axe is axe-core of npm, its file axe.min.js. It checks the page that it runs in.
const axe = "testdata/axe.min.js"

// A finding is a violation of a rule of axe-core.
type finding struct {
	Rule  string   `json:"rule"`
	Help  string   `json:"help"`
	Nodes []string `json:"nodes"`
}

// addAxe adds axe-core to the page, until the next page is loaded.
func (p *tab) addAxe() {
	p.t.Helper()
	script, err := os.ReadFile(axe)
	if err != nil {
		p.t.Fatal(err)
	}
	p.evaluate(string(script))
}

// audit reports the findings of axe-core in a part of the page as it is. The part is a selector.
func (p *tab) audit(state, part string) {
	p.t.Helper()
	found := value[[]finding](p, `(await axe.run(a, { resultTypes: ['violations'], preload: false })).violations.map((v) =>
		({
			rule: v.id, help: v.help,
			nodes: v.nodes.slice(0, 3).map((n) => n.html.slice(0, 300) + ' ' + n.failureSummary),
		}))`, part)
	for _, f := range found {
		p.t.Errorf("%s: %s: %s\n\t%s", state, f.Rule, f.Help, strings.Join(f.Nodes, "\n\t"))
	}
}

// A look is the width of the page and the colours of the system.
type look struct {
	name    string
	width   int64
	colours string
}

var looks = []look{
	{"light", 1280, "light"}, {"dark", 1280, "dark"}, {"light and narrow", 400, "light"}, {"dark and narrow", 400, "dark"},
}

// look sets the width of the page and the colours of the system, light or dark.
func (p *tab) look(width int64, colours string) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, chromedp.EmulateViewport(width, 800)); err != nil {
		p.t.Fatal(err)
	}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: colours}},
	}); err != nil {
		p.t.Fatal(err)
	}
}

func TestAxe_FindsNothingInAnyView(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.work()
	for _, level := range []pb.CredentialAccess{operator, observer} {
		p := open(m, level, "attention")
		p.addAxe()
		for _, l := range looks {
			if level == observer && l.colours == "dark" { // the buttons are absent, the colours the same
				continue
			}
			p.look(l.width, l.colours)
			for _, v := range shownViews {
				p.show(v.view)
				p.await(`one('[data-view] [data-row]')`)
				p.audit(v.view+", "+l.name+", "+word(level), "html")
			}
		}
		p.close()
	}
}

// An axeState is something that the page shows beside its views. part is the selector of what axe-core checks.
type axeState struct {
	name string
	show func(p *tab)
	part string
}

// item is the opened item that a row shows.
func item(view, row string) axeState {
	return axeState{row + " in " + view, func(p *tab) {
		p.show(view)
		p.await(`press(row(a))`, row)
		p.await(`one('.panel .facts, .panel .team-list, .panel [data-message]')`)
	}, ".panel"}
}

// linked is a view with something that its link opens, which has a text.
func linked(view, text string) axeState {
	return axeState{view, func(p *tab) {
		p.show(view)
		p.await(`has(one('.panel .content'), a)`, text)
	}, ".panel"}
}

// dialog is the dialog of an action of the page.
func dialog(state axeState, action string) axeState {
	return axeState{"the dialog " + action + " of " + state.name, func(p *tab) {
		state.show(p)
		p.act(`one('.panel') ?? document`, action)
		p.await(`one('dialog[open]') && !one('dialog[open] [data-confirm][aria-disabled=true]')`)
	}, "dialog"}
}

var axeStates = []axeState{
	item("team", "builder-1"), item("queues", "builder-1"), item("timeline", "The staging server"),
	item("conversations", "bcrypt or argon2id?"), item("dead", "no such repository"), item("locks", "(all below)"),
	item("locks", "review/login"), item("work", "Serve the API"), item("work", "Which database?"),
	item("work", "Review the login form"), item("work", "The importer"), item("work", "The staging server"),
	linked("locks/lock:src%2Fauth%2Flogin.go", "Waiting requests"),
	linked("work/task:none", "none"), linked("team/none", "none"),
	dialog(item("team", "builder-1"), "message"), dialog(item("team", "builder-1"), "terminate"),
	dialog(item("work", "Build the form"), "cancel"), dialog(item("work", "Review the login form"), "decide"),
	dialog(item("work", "Which database?"), "cast"),
	dialog(axeState{"dead", func(p *tab) { p.show("dead"); p.await(`one('[data-count="3"]')`) }, ""}, "purge-all"),
	{"a dialog whose call has failed", func(p *tab) {
		p.show("conversations")
		p.act(`document`, "send", "to", "nobody-here", "subject", "Hello")
		p.await(`press(one('dialog[open] [data-confirm]'))`)
		p.await(`one('dialog[open] .failure')`)
	}, "dialog"},
	{"the help", func(p *tab) {
		p.keys("?")
		p.await(`one('dialog[open]')`)
	}, "dialog"},
	{"the suggestions of the search", func(p *tab) {
		p.show("team")
		p.keys("/", "builder", kb.ArrowDown)
		p.await(`one('.jump [aria-selected=true]')`)
	}, "header"},
	{"a chosen row", func(p *tab) {
		p.show("dead")
		p.await(`row('no such repository')`)
		p.keys(kb.ArrowDown, kb.ArrowDown, " ")
		p.await(`one('[data-row] input:checked') && one('[data-action="purge-selected"]')`)
	}, ".view"},
	{"a held timeline", func(p *tab) {
		p.show("timeline")
		p.await(`row('The staging server')`) // before it, the new view is not held
		p.await(`press(one('[data-action=hold]'))`)
		p.await(`one('[data-action=hold][aria-pressed=true]')`)
	}, ".tools"},
	{"a message about an action", func(p *tab) {
		p.show("team/lead")
		p.act(panel, "nudge", "subject", "Hello")
		p.confirm()
		p.await(`one('.toasts p')`)
	}, ".toasts"},
	{"a closed session", func(p *tab) {
		p.show("queues?session=old")
		p.await(`one('[data-banner=closed]')`)
	}, "html"},
}

func TestAxe_FindsNothingInItemsDialogsAndMenus(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.work()
	call(m, "", pb.NewSessionServiceClient, pb.SessionServiceClient.CreateSession, &pb.CreateSessionRequest{Name: "old"})
	call(m, "", pb.NewSessionServiceClient, pb.SessionServiceClient.CloseSession, &pb.CloseSessionRequest{Name: "old"})
	p := open(m, operator, "attention")
	p.addAxe()
	question := linked("timeline?open=message:"+m.question("bcrypt or argon2id?"), "Deliveries")
	states := append(slices.Clone(axeStates), question)
	for _, l := range []look{looks[0], looks[3]} { // each colour and each width once, for the run time
		p.look(l.width, l.colours)
		for _, s := range states {
			s.show(p)
			p.audit(s.name+", "+l.name, s.part)
			p.evaluate(`document.querySelector('dialog')?.close(), document.activeElement.blur()`)
			p.show("attention")
			p.await(`!one('dialog')`)
		}
	}
}

func TestAxe_FindsNothingWithoutAConnectionOrALogin(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	r := newRelay(t, m.TCP())
	p := openAt(m, r.base(), operator, "attention")
	p.addAxe()
	audit := func(state string) {
		t.Helper()
		for _, l := range looks {
			p.look(l.width, l.colours)
			p.audit(state+", "+l.name, "html")
		}
	}
	r.to("")
	p.await(`one('[data-banner=broken]')`)
	audit("without a connection")
	r.to(m.TCP())
	p.await(`one('[data-connection=live]')`)
	p.look(1280, "light") // a narrow page has no button for it
	p.await(signOut)
	p.await(`one('[data-view=login]')`)
	audit("signed out")
	p.load("/login#used", "login")
	p.await(`one('.login .failure')`)
	p.addAxe()
	audit("after an invalid link")
}
