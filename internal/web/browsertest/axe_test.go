package browsertest

import (
	"os"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// axe is axe-core of npm, its file axe.min.js. It checks the page that it runs in.
const axe = "testdata/axe.min.js"

// A finding is a violation of a rule of axe-core.
type finding struct {
	Rule  string   `json:"rule"`
	Help  string   `json:"help"`
	Nodes []string `json:"nodes"`
}

// audit reports the findings of axe-core in the page as it is.
func (p *tab) audit(state string) {
	p.t.Helper()
	found := value[[]finding](p, `(await axe.run(document, { resultTypes: ['violations'] })).violations.map((v) =>
		({ rule: v.id, help: v.help, nodes: v.nodes.slice(0, 3).map((n) => n.html.slice(0, 300) + ' ' + n.failureSummary) }))`)
	for _, f := range found {
		p.t.Errorf("%s: %s: %s\n\t%s", state, f.Rule, f.Help, strings.Join(f.Nodes, "\n\t"))
	}
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
	script, err := os.ReadFile(axe)
	if err != nil {
		t.Fatal(err)
	}
	m := newTeam(t)
	m.work()
	p := open(m, operator, "attention")
	p.evaluate(string(script))
	for _, look := range []struct {
		width   int64
		colours string
	}{{1280, "light"}, {1280, "dark"}, {400, "light"}, {400, "dark"}} {
		p.look(look.width, look.colours)
		for _, view := range p.views() {
			p.show(view)
			state := view + ", " + look.colours
			if look.width == 400 {
				state += ", narrow"
			}
			p.audit(state)
			if look.colours == "dark" {
				p.openRows(1, func() { p.audit(state + ", with an opened item") })
			}
		}
	}
	p.show("team/builder-1")
	p.act(panel, "terminate")
	p.audit("a dialog")
}
