package browsertest

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
)

func TestKeyboard_ReachesEveryControlOfEveryView(t *testing.T) {
	m := newTeam(t)
	m.work()
	p := open(m, operator, "attention")
	keys := value[[]string](p, `(await import('/ui/views.js')).views.map((v) => v.key)`)
	for i, view := range p.views() {
		value[bool](p, `(document.activeElement.blur(), true)`) // a field takes the key for itself
		p.keys(keys[i])
		p.await(`one('[data-view="' + a + '"]')`, view)
		p.reachAll(view)
	}
}

// reachAll presses Tab until the focus has been on every control of the page. If it has passed the
// page twice, it fails.
func (p *tab) reachAll(state string) {
	p.t.Helper()
	const missed = `all('a[href], button, input, select, textarea, [tabindex]')
		.filter((e) => shown(e) && !e.disabled && e.tabIndex >= 0 && !reached.has(e))`
	value[bool](p, `(window.reached = new Set(), true)`)
	for range 2 * value[int](p, missed+`.length`) {
		p.keys(kb.Tab)
		if value[int](p, `(reached.add(document.activeElement), `+missed+`.length)`) == 0 {
			return
		}
	}
	p.t.Errorf("%s: Tab does not reach %q", state, value[[]string](p, missed+`.map((e) => e.outerHTML)`))
}
