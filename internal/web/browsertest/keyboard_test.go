package browsertest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	pb "brokerd/gen/brokerd/v1"
)

func TestKeyboard_ReachesEveryControlOfEveryView(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.work()
	p := open(m, operator, "attention")
	for i, key := range p.viewKeys() {
		value[bool](p, `(document.activeElement.blur(), true)`) // a field takes the key for itself
		p.keys(key)
		p.await(`one('[data-view="' + a + '"]')`, shownViews[i].view)
		p.sees(shownViews[i].sight)
		p.reachAll(shownViews[i].view)
	}
}

// viewKeys returns the keys of the views in their order.
func (p *tab) viewKeys() []string {
	p.t.Helper()
	return value[[]string](p, `(await import('/ui/app.js')).views.map((v) => v.key)`)
}

// controls are the elements to which Tab moves the focus.
const controls = `all('a[href], button, input, select, textarea, [tabindex]')
	.filter((e) => shown(e) && !e.disabled && e.tabIndex >= 0)`

// reachAll presses Tab until the focus has been on every control of the page. If it has passed the
// page twice, it fails.
func (p *tab) reachAll(state string) {
	p.t.Helper()
	const missed = controls + `.filter((e) => !reached.has(e))`
	value[bool](p, `(window.reached = new Set(), true)`)
	for presses := 0; ; presses++ {
		left := value[[]int](p, `(reached.add(document.activeElement), [`+missed+`.length, `+controls+`.length])`)
		if left[0] == 0 {
			return
		}
		if presses > 2*left[1] {
			break
		}
		p.tabKey()
	}
	p.t.Errorf("%s: Tab does not reach %q", state, value[[]string](p, missed+`.map((e) => e.outerHTML)`))
}

// tabKey presses Tab, with modifiers, and checks that the focus is visible.
func (p *tab) tabKey(modifiers ...chromedp.Modifier) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, chromedp.KeyEvent(kb.Tab, raw, chromedp.KeyModifiers(modifiers...))); err != nil {
		p.t.Fatal(err)
	}
	if hidden := value[string](p, `(() => {
		const e = document.activeElement;
		const { outlineStyle, outlineWidth } = getComputedStyle(e);
		return e === document.body || (outlineStyle !== 'none' && outlineWidth !== '0px') ? '' : e.outerHTML;
	})()`); hidden != "" {
		p.t.Errorf("the focus is not visible on %s", hidden)
	}
}

// tabTo presses Tab until the focus is on the element that an expression names, or with Shift, back to it.
func (p *tab) tabTo(element string, modifiers ...chromedp.Modifier) {
	p.t.Helper()
	p.await(element)
	for range value[int](p, controls+`.length`) + 2 {
		if value[bool](p, `document.activeElement === `+element) {
			return
		}
		p.tabKey(modifiers...)
	}
	p.t.Fatalf("Tab does not reach %s", element)
}

// choose presses arrow keys until the chosen row of the focused table has a text. Rows may move meanwhile, and the page may
// show a new table that has the focus a moment later.
func (p *tab) choose(text string) {
	p.t.Helper()
	for range 500 {
		p.await(`[...document.activeElement.querySelectorAll('[data-row]')].some((r) => has(r, a))`, text)
		switch value[string](p, `(() => {
			const rows = [...document.activeElement.querySelectorAll('[data-row]')];
			const at = rows.findIndex((r) => r.matches('.active')), to = rows.findIndex((r) => has(r, a));
			return to < 0 ? 'gone' : at === to ? 'there' : at < to ? 'down' : 'up';
		})()`, text) {
		case "there":
			return
		case "down":
			p.keys(kb.ArrowDown)
		case "up":
			p.keys(kb.ArrowUp)
		}
	}
	p.t.Fatalf("the arrow keys reach no row with %q", text)
}

// focused waits until the element that an expression names has the focus.
func (p *tab) focused(element string) {
	p.t.Helper()
	p.await(`document.activeElement === ` + element + ` && document.activeElement !== null`)
}

// stays presses Tab and Shift+Tab so often that the focus would leave the open dialog.
func (p *tab) stays() {
	p.t.Helper()
	inside := value[int](p, controls+`.filter((e) => e.closest('dialog[open]')).length`)
	for _, modifiers := range [][]chromedp.Modifier{nil, {chromedp.ModifierShift}} {
		for range inside + 1 {
			p.tabKey(modifiers...)
			if outside := value[string](p, `(() => {
				const e = document.activeElement;
				return e === document.body || e.closest('dialog[open]') ? '' : e.outerHTML;
			})()`); outside != "" {
				p.t.Errorf("the focus has left the dialog for %s", outside)
			}
		}
	}
}

// A keyAction is an action that a keyboard alone does in a view.
type keyAction struct {
	view   string
	target func(m *team, p *tab) string // chooses the object, and returns the button of the action
	fields []string                     // keys for the fields of the dialog, one after the other
	state  func(m *team) string         // that the broker reports
	before string                       // the state until the dialog is confirmed
	after  string
	focus  string // the element that has the focus in the end
}

// The parts of the page that have the focus after a button was removed.
const (
	content  = `one('.view .panel .content')`
	message  = `one('.stage > .panel .content')`
	findings = `one('.view > .scroll')`
)

// panelButton is a button of the panel of a view.
func panelButton(action string) string {
	return fmt.Sprintf(`one('.view .panel [data-action=%q]')`, action)
}

var keyActions = []keyAction{
	{
		view: "attention",
		target: func(_ *team, p *tab) string {
			p.await(`row('role:designer')`)
			p.keys(kb.ArrowDown)
			p.focused(findings)
			return `one('[data-action=CancelMessage]', row('role:designer'))`
		},
		fields: []string{"No agent draws"},
		state:  func(m *team) string { return m.stateOf("Draw a logo") }, before: "pending", after: "cancelled",
		focus: findings,
	},
	{
		view: "team",
		target: func(_ *team, p *tab) string {
			p.openByKeys("builder-2")
			return panelButton("nudge")
		},
		fields: []string{"Are you there?"},
		state:  func(m *team) string { return m.newest("builder-2") },
		before: "builder-1: Handoff from builder-1: The importer", after: "system: Are you there?",
		focus: panelButton("nudge"),
	},
	{
		view: "queues",
		target: func(_ *team, p *tab) string {
			p.openByKeys("role:builder")
			p.tabTo(`one('.panel .table')`)
			p.choose("Add the login form")
			p.keys(kb.Enter)
			p.focused(`one('.stage > .panel')`)
			return `one('.stage > .panel [data-action=cancel]')`
		},
		fields: []string{"It exists"},
		state:  func(m *team) string { return m.stateOf("Add the login form") }, before: "pending", after: "cancelled",
		focus: message,
	},
	{
		view: "timeline",
		target: func(_ *team, p *tab) string {
			p.tabTo(`one('[aria-label="Types"]')`)
			p.keys("message.sent", kb.Enter)
			p.tabTo(`one('[data-view] .table')`)
			p.openByKeys("Fix the failing session test")
			p.tabTo(`one('.panel [data-name^="message:"]')`)
			p.keys(kb.Enter)
			p.focused(`one('.stage > .panel')`)
			return `one('.stage > .panel [data-action=cancel]')`
		},
		fields: []string{"It passes"},
		state:  func(m *team) string { return m.stateOf("Fix the failing session test") },
		before: "pending", after: "cancelled",
		focus: message,
	},
	{
		view: "conversations",
		target: func(_ *team, p *tab) string {
			p.openByKeys("bcrypt or argon2id?")
			return panelButton("reply")
		},
		fields: []string{"It is argon2id."},
		state:  func(m *team) string { return m.newest("builder-2") },
		before: "system: Are you there?", after: "system: Re: bcrypt or argon2id?",
		focus: panelButton("reply"),
	},
	{
		view: "dead",
		target: func(_ *team, p *tab) string {
			p.await(`row('Rename the tables')`)
			p.keys(kb.ArrowDown)
			for _, subject := range []string{"Rename the tables", "Port the old importer"} {
				p.choose(subject)
				p.keys(" ")
				p.await(`one('input:checked', row(a))`, subject)
			}
			p.tabTo(`one('[data-action="redrive-selected"]')`, chromedp.ModifierShift)
			return `one('[data-action="redrive-selected"]')`
		},
		state: func(m *team) string {
			return m.stateOf("Rename the tables") + " " + m.stateOf("Write the migration") +
				" " + m.stateOf("Port the old importer")
		},
		before: "dead dead dead", after: "pending dead pending",
		focus: `one('main')`,
	},
	{
		view: "locks",
		target: func(_ *team, p *tab) string {
			p.openByKeys("(all below)")
			return panelButton("force-release")
		},
		fields: []string{"builder-1 is away"},
		state:  (*team).holders, before: "builder-1 src/auth/", after: "builder-2 src/auth/login.go",
		focus: content,
	},
	{
		view: "work",
		target: func(_ *team, p *tab) string {
			p.openByKeys("Which database?")
			return panelButton("cast")
		},
		fields: []string{"builder-2", "postgres", "It scales"},
		state:  (*team).ballots, before: "builder-1 sqlite", after: "builder-1 sqlite, builder-2 postgres",
		focus: content, // with its ballot, all have voted
	},
}

// openByKeys goes to the table of the view that has a row with a text, unless it has the focus, chooses the row and
// opens it.
func (p *tab) openByKeys(text string) {
	p.t.Helper()
	table := fmt.Sprintf(`all('[data-view] .table').find((t) => [...t.querySelectorAll('[data-row]')].some((r) => has(r, %q)))`, text)
	p.await(table)
	if !value[bool](p, `document.activeElement.matches('.table')`) {
		p.keys(kb.ArrowDown)
		p.await(`document.activeElement.matches('.table')`)
	}
	p.tabTo(table)
	p.choose(text)
	p.keys(kb.Enter)
	p.focused(`one('.panel')`)
}

// stateOf returns the state of the one delivery of the message with a subject.
func (m *team) stateOf(subject string) string {
	m.t.Helper()
	out := call(m, "", pb.NewMessageServiceClient, pb.MessageServiceClient.ListMessages, &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, PageSize: 100,
	})
	for _, item := range out.GetItems() {
		if item.GetMessage().GetSubject() == subject {
			return m.state(item.GetMessage().GetId())
		}
	}
	return "no message"
}

// ballots returns the ballots of the one vote, with the agents.
func (m *team) ballots() string {
	m.t.Helper()
	out := call(m, "", pb.NewVoteServiceClient, pb.VoteServiceClient.ListVotes, &pb.ListVotesRequest{})
	var all []string
	for _, b := range m.getVote(out.GetVotes()[0].GetId()).GetBallots() {
		if b.GetOption() != "" {
			all = append(all, b.GetAgent()+" "+b.GetOption())
		}
	}
	return strings.Join(all, ", ")
}

func TestKeyboard_DoesAWholeActionInEveryView(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.work()
	p := open(m, operator, "attention")
	keys := p.viewKeys()
	for i, a := range keyActions {
		t.Run(a.view, func(t *testing.T) {
			m, p := m.with(t), p.with(t)
			p.keys(keys[i])
			p.await(`one('[data-view="' + a + '"]')`, a.view)
			button := a.target(m, p)

			p.tabTo(button)
			p.keys(kb.Enter)
			p.dialogHasFocus(len(a.fields) > 0)
			p.keys(kb.Escape)
			p.await(`!one('dialog[open]')`)
			p.focused(button)
			if got := a.state(m); got != a.before {
				t.Errorf("after Esc, the broker reports %q, want %q", got, a.before)
			}

			p.keys(" ")
			p.dialogHasFocus(len(a.fields) > 0)
			for i, text := range a.fields {
				if i > 0 {
					p.tabKey()
				}
				p.keys(text)
			}
			p.stays()
			p.tabTo(`one('dialog[open] [data-confirm]')`)
			p.keys(kb.Enter)
			p.await(`!one('dialog[open]')`)
			p.focused(a.focus)
			if got := a.state(m); got != a.after {
				t.Errorf("the broker reports %q, want %q", got, a.after)
			}

			p.closeByKeys()
		})
	}
}

// dialogHasFocus waits until a dialog is open and shows its text, and has the focus in its first control.
func (p *tab) dialogHasFocus(fields bool) {
	p.t.Helper()
	control := `one('dialog[open] button')`
	if fields {
		control = `one('dialog[open] [data-field]')`
	}
	p.focused(control)
	p.await(`!one('dialog[open] [data-confirm][aria-disabled=true]')`)
}

// closeByKeys closes the opened items with Esc. The table from which an item was opened has the focus again.
func (p *tab) closeByKeys() {
	p.t.Helper()
	for range value[int](p, `all('.panel').length`) {
		left := value[int](p, `all('.panel').length`) - 1
		p.keys(kb.Escape)
		p.await(`all('.panel').length === a`, left)
		p.await(`document.activeElement !== document.body`)
	}
}

func TestKeyboard_SearchFindsAndFilters(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	m.work()
	p := open(m, operator, "team")
	p.await(`row('reviewer')`)
	const field = `one('.jump input')`

	p.keys("/")
	p.focused(field)
	p.keys("builder")
	p.await(`all('.jump [role=option]').length >= 2 && row('builder-1') && !row('reviewer')`)
	p.keys(kb.Enter) // goes to the list, which is filtered
	p.focused(`one('[data-view] .table')`)
	p.choose("builder-2")

	p.keys("/")
	p.focused(field)
	p.keys(kb.Escape) // empties the field
	p.await(field + `.value === '' && row('reviewer')`)
	p.keys("lead", kb.ArrowDown)
	p.await(`has(one('.jump [aria-selected=true]'), 'lead')`)
	p.keys(kb.Enter) // opens the agent
	p.await(`has(one('.panel h2'), 'lead') && location.hash.startsWith('#/team/lead')`)
	p.focused(`one('.panel')`)

	p.keys("/")
	p.focused(field)
	p.keys(kb.Escape) // leaves the empty field
	p.await(`document.activeElement !== ` + field)
}

func TestKeyboard_HelpOpensAndGivesTheFocusBack(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	p := open(m, operator, "team")
	p.openByKeys("lead")
	for _, end := range []string{kb.Escape, kb.Enter} { // Enter presses the button
		p.keys("?")
		p.focused(`one('dialog[open] button')`)
		p.await(`has(one('dialog[open]'), 'choose a row')`)
		p.stays()
		p.keys("1") // has no effect in a dialog
		p.keys(end)
		p.await(`!one('dialog')`)
		p.focused(`one('.panel')`)
	}
	p.await(`location.hash.startsWith('#/team/lead')`)
}
