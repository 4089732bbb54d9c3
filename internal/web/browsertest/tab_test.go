package browsertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	pb "brokerd/gen/brokerd/v1"
)

// watch collects what a page must not do: errors, and violations of the content security policy.
const watch = `
window.problems = [];
addEventListener('error', (e) => problems.push('error: ' + e.message));
addEventListener('unhandledrejection', (e) => problems.push('unhandled: ' + e.reason));
document.addEventListener('securitypolicyviolation', (e) =>
  problems.push('policy: ' + e.violatedDirective + ' ' + e.blockedURI + ' ' + e.sample));
`

// helpers are functions for the expressions of await.
const helpers = `
const all = (selector) => [...document.querySelectorAll(selector)];
const one = (selector, ...within) => (within.length ? within[0] : document)?.querySelector(selector);
const has = (element, text) => !!element && element.textContent.includes(text);
const row = (text) => all('[data-view] [data-row]').find((r) => has(r, text));
const shown = (element) => !!element && element.checkVisibility({ visibilityProperty: true });
const press = (element) => {
  if (!shown(element) || element.disabled || element.ariaDisabled === 'true') return false;
  element.click();
  return true;
};
// reach scrolls the tables until one of their rows has a text.
const reach = (text) => {
  if (row(text)) return true;
  for (const grid of all('[data-view] .table')) {
    const last = grid.scrollTop + grid.clientHeight >= grid.scrollHeight - 1;
    grid.scrollTop = last ? 0 : grid.scrollTop + grid.clientHeight / 2;
  }
  return false;
};
const fill = (field, value) => {
  if (!shown(field)) return false;
  Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), 'value').set.call(field, value);
  field.dispatchEvent(new Event('input', { bubbles: true }));
  field.dispatchEvent(new Event('change', { bubbles: true }));
  return true;
};
`

// A tab is a tab of the browser that shows the dashboard. It is for one goroutine.
type tab struct {
	t     testing.TB
	ctx   context.Context
	base  string // URL of the page without the hash
	close func() // checks that the page has had no problem
}

// open opens a view of the dashboard, such as dead or locks/src%2Fauth, in a tab with its own store. The
// level of access is operator or observer. When the test ends, the page must have had no problem.
func open(m *team, level pb.CredentialAccess, view string) *tab {
	m.t.Helper()
	return openAt(m, "http://"+m.TCP(), level, view)
}

// openAt opens a view through another address.
func openAt(m *team, base string, level pb.CredentialAccess, view string) *tab {
	m.t.Helper()
	p := newTab(m.t, browser(m.t), base, chromedp.WithNewBrowserContext())
	p.signIn(m, level)
	p.show(view)
	return p
}

// signIn opens a login link, and waits until the page shows its first view.
func (p *tab) signIn(m *team, level pb.CredentialAccess) {
	p.t.Helper()
	link := call(m, "", pb.NewCredentialServiceClient, pb.CredentialServiceClient.CreateLoginLink,
		&pb.CreateLoginLinkRequest{Access: level})
	p.load("/login#"+link.GetSecret(), "attention")
}

// newTab opens an empty tab. parent is the browser, or a tab whose store the new one shares.
func newTab(t testing.TB, parent context.Context, base string, options ...chromedp.ContextOption) *tab {
	t.Helper()
	ctx, end := chromedp.NewContext(parent, options...)
	p := &tab{t: t, ctx: ctx, base: base}
	p.close = sync.OnceFunc(func() {
		if problems := value[[]string](p, `window.problems ?? []`); len(problems) > 0 {
			t.Errorf("the page has problems: %s", strings.Join(problems, "; "))
		}
		end()
	})
	t.Cleanup(p.close)
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 800)); err != nil {
		t.Fatal(err)
	}
	p.before(watch)
	return p
}

// act presses the button of an action inside an element, which an expression names. If the action has a
// dialog, fields are pairs of the names of its fields and their values.
func (p *tab) act(within, action string, fields ...string) {
	p.t.Helper()
	p.await(`press(one('[data-action="' + a + '"]', `+within+`))`, action)
	for i := 0; i < len(fields); i += 2 {
		p.await(`fill(one('dialog[open] [data-field="' + a + '"]'), b)`, fields[i], fields[i+1])
	}
}

// confirm presses the button that ends the open dialog, and waits until the dialog has gone.
func (p *tab) confirm() {
	p.t.Helper()
	p.await(`press(one('dialog[open] [data-confirm]'))`)
	p.await(`!one('dialog[open]')`)
}

// before runs a script in each page that the tab loads later, before the scripts of the page.
func (p *tab) before(script string) {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, page.AddScriptToEvaluateOnNewDocument,
		page.AddScriptToEvaluateOnNewDocumentParams{Source: script}); err != nil {
		p.t.Fatal(err)
	}
}

// load loads a page and waits until it shows a view.
func (p *tab) load(path, view string) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, chromedp.Navigate(p.base+path)); err != nil {
		p.t.Fatal(err)
	}
	p.await(`one('[data-view="' + a + '"]')`, view)
}

// show changes the hash of the page to a view and waits until it shows the view.
func (p *tab) show(view string) {
	p.t.Helper()
	name, _, _ := strings.Cut(strings.ReplaceAll(view, "?", "/"), "/")
	p.await(`(location.hash = '#/' + a) && one('[data-view="' + b + '"]')`, view, name)
}

// await waits until an expression is true. a, b and c are its arguments.
func (p *tab) await(expression string, args ...any) {
	p.t.Helper()
	run[bool](p, expression, fmt.Sprintf(`
		const end = Date.now() + %d;
		for (let last;;) {
			try { if (%s) return true; } catch (e) { last = e; }
			if (Date.now() > end) {
				const focus = document.activeElement.cloneNode().outerHTML;
				throw new Error([location.hash, last, focus, document.body.innerText.slice(0, 2000)].join('\n'));
			}
			await new Promise((f) => setTimeout(f, 15));
		}`, (patience/2).Milliseconds(), expression), args)
}

// value returns the value of an expression. a, b and c are its arguments.
func value[T any](p *tab, expression string, args ...any) T {
	p.t.Helper()
	return run[T](p, expression, "return "+expression, args)
}

// evaluate runs a script in the page.
func (p *tab) evaluate(script string) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, chromedp.Evaluate[chromedp.Void](script)); err != nil {
		p.t.Fatal(err)
	}
}

// run runs the body of a function in the page. A navigation starts it again. The title names it in an error.
func run[T any](p *tab, title, body string, args []any) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	values := make([]string, 0, len(args))
	for _, a := range args {
		values = append(values, quote(p.t, a))
	}
	script := fmt.Sprintf("(async (a, b, c) => {%s%s})(%s)", helpers, body, strings.Join(values, ", "))
	for {
		v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, func(o *runtime.EvaluateParams) { o.AwaitPromise = new(true) }))
		if err == nil {
			return v
		}
		if refused := (*cdproto.Error)(nil); !errors.As(err, &refused) || ctx.Err() != nil {
			p.t.Fatalf("%s %v: %v", title, args, err)
		}
	}
}

// quote returns a value as an expression of JavaScript.
func quote(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// raw makes the first event of a key the one of a real keyboard: if the page handles it, the key types
// no character.
func raw(k *input.DispatchKeyEventParams) {
	if k.Type == kb.KeyDown {
		k.Type = kb.KeyRawDown
	}
}

// keys presses keys, such as "j" or kb.Enter.
func (p *tab) keys(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		if err := chromedp.Do(p.ctx, chromedp.KeyEvent(k, raw)); err != nil {
			p.t.Fatal(err)
		}
	}
}

// openRows opens the first rows of the tables of the view, calls check for each, and closes it.
func (p *tab) openRows(most int, check func()) {
	p.t.Helper()
	const rows = `all('[data-view] [role=row][data-row]').filter((r) => !one('[aria-expanded]', r))` // no folders
	for i := range min(most, value[int](p, rows+`.length`)) {
		p.await(`press(`+rows+`[a])`, i)
		p.await(`one('.panel .content').textContent.trim()`)
		check()
		p.await(`press(one('.panel > header [aria-label="Close"]'))`)
		p.await(`!one('.panel')`)
	}
}
