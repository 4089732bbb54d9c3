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

// reachAll presses Tab until the focus has passed every control of the page, and fails if it returns
// to the first one before.
func (p *tab) reachAll(state string) {
	p.t.Helper()
	value[bool](p, `(document.activeElement.blur(), getSelection().removeAllRanges(), window.reached = new Set(), true)`)
	const controls = `all('a[href], button, input, select, textarea, [tabindex]').filter((e) => shown(e) && !e.disabled && e.tabIndex >= 0)`
	for range 500 {
		p.keys(kb.Tab)
		again := value[bool](p, `((e) => reached.has(e) || (reached.add(e), false))(document.activeElement)`)
		if again {
			break
		}
	}
	if missed := value[[]string](p, controls+`.filter((e) => !reached.has(e)).map((e) => e.outerHTML)`); len(missed) > 0 {
		p.t.Errorf("%s: Tab does not reach %q", state, missed)
	}
}
