package histories_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Groups of keys are independent of each other. A group has two keys with values, which transactions change together, and a document.
const (
	groups = 4
	pair   = 2 // keys with values in a group
)

// A keyVerb is what is done with keys.
type keyVerb int

const (
	get keyVerb = iota
	put
	remove
	transact
	add
	read // a document
)

// A keyCall is what was asked.
type keyCall struct {
	verb     keyVerb
	group    int
	key      int    // 0 or 1; unused by transact, add and read
	value    string // to write; of a transaction: to both keys
	compares [pair]*int64
}

// A keyAnswer is what came back.
type keyAnswer struct {
	changed  bool // STATE_CHANGED: a comparison failed
	found    bool // get, read; of remove: it was there
	value    string
	revision int64 // of the key or the change; of a failed comparison: what the key has
	versions [pair]int64
	at       int64 // get, read: what the answer is true at
	number   int64 // add: of the entry
}

// A cell is one key.
type cell struct {
	exists   bool
	value    string
	version  int64
	revision revision // of the last change, a deletion included
}

// A keyGroup is the state of the model.
type keyGroup struct {
	cells    [pair]cell
	document string // its entries, each with a line end
	entries  int64
	revision revision // of the document
	last     int64    // the highest revision seen
}

func keysModel() model {
	return model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			parts := make([][]porcupine.Operation, groups)
			for _, o := range all {
				g := o.Input.(keyCall).group
				parts[g] = append(parts[g], o)
			}
			return parts
		},
		Init: func() any { return keyGroup{} },
		Step: func(state, input, output any) (bool, any) {
			g, call := state.(keyGroup), input.(keyCall)
			if output == nil {
				g.maybe(call)
				return true, g
			}
			ok := g.step(call, output.(keyAnswer))
			return ok, g
		},
		Equal:             func(a, b any) bool { return a.(keyGroup) == b.(keyGroup) },
		DescribeOperation: describeKeys,
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
}

// step goes on by an answered call, and reports whether it may be answered like that.
func (g *keyGroup) step(call keyCall, a keyAnswer) bool {
	switch call.verb {
	case get:
		return g.cells[call.key].get(a) && (!a.found || g.seenAt(a.at))
	case read:
		if !a.found {
			return g.entries == 0
		}
		ok := false
		g.revision, ok = g.revision.is(a.revision)
		return ok && g.entries == a.number && g.document == a.value && g.seenAt(a.at)
	case add:
		g.append(call.value, revision{n: a.revision})
		return g.entries == a.number && g.seen(a.revision)
	}
	for i, want := range call.compares {
		if want == nil {
			continue
		}
		c := &g.cells[i]
		if a.changed {
			if c.differs(*want, a.revision) {
				return true
			}
			continue
		}
		if !c.matches(*want) {
			return false
		}
	}
	if a.changed {
		return false
	}
	if call.verb == remove && !g.cells[call.key].exists {
		return !a.found && a.revision == 0
	}
	g.apply(call, revision{n: a.revision})
	for i, version := range a.versions {
		if version != 0 && g.cells[i].version != version {
			return false
		}
	}
	return (call.verb != remove || a.found) && g.seen(a.revision)
}

// maybe goes on by a change that nobody answered.
func (g *keyGroup) maybe(call keyCall) {
	if call.verb == add {
		g.append(call.value, after(g.last))
		return
	}
	for i, want := range call.compares {
		if want != nil && !g.cells[i].matches(*want) {
			return
		}
	}
	if call.verb != remove || g.cells[call.key].exists {
		g.apply(call, after(g.last))
	}
}

func (g *keyGroup) apply(call keyCall, r revision) {
	for i := range g.cells {
		c := &g.cells[i]
		switch {
		case call.verb == transact, call.verb == put && i == call.key:
			*c = cell{true, call.value, c.version + 1, r}
		case call.verb == remove && i == call.key:
			*c = cell{false, "", c.version + 1, r}
		}
	}
}

func (g *keyGroup) append(text string, r revision) {
	g.document += text + "\n"
	g.entries++
	g.revision = r
}

// seen notes the revision of a change: it must be a new one.
func (g *keyGroup) seen(n int64) bool {
	if n <= g.last {
		return false
	}
	g.last = n
	for i := range g.cells {
		g.cells[i].revision = g.cells[i].revision.before(n)
	}
	g.revision = g.revision.before(n)
	return true
}

// seenAt notes the revision that an answer is true at: nothing older than what was seen.
func (g *keyGroup) seenAt(n int64) bool {
	if n < g.last {
		return false
	}
	g.last = n
	return true
}

func (c *cell) get(a keyAnswer) bool {
	if !a.found {
		return !c.exists
	}
	ok := false
	c.revision, ok = c.revision.is(a.revision)
	return ok && c.exists && c.value == a.value && c.version == a.versions[0]
}

// matches reports whether a comparison may succeed, which tells the revision if it was unknown.
func (c *cell) matches(want int64) bool {
	if want == 0 || !c.exists {
		return want == 0 && !c.exists
	}
	r, ok := c.revision.is(want)
	if ok {
		c.revision = r
	}
	return ok
}

// differs reports whether a comparison may fail with the revision named.
func (c *cell) differs(want, named int64) bool {
	if want == named {
		return false
	}
	if !c.exists {
		return named == 0
	}
	r, ok := c.revision.is(named)
	if ok {
		c.revision = r
	}
	return ok
}

func describeKeys(input, output any) string {
	c := input.(keyCall)
	name := fmt.Sprintf("g%d.%d", c.group, c.key)
	var what string
	switch c.verb {
	case get, read:
		what = fmt.Sprintf("get %s", name)
	case put:
		what = fmt.Sprintf("put %s=%s", name, c.value)
	case remove:
		what = fmt.Sprintf("delete %s", name)
	case add:
		what = fmt.Sprintf("append g%d %s", c.group, c.value)
	case transact:
		what = fmt.Sprintf("transact g%d=%s", c.group, c.value)
	}
	if slices.ContainsFunc(c.compares[:], func(n *int64) bool { return n != nil }) {
		var want []string
		for _, n := range c.compares {
			if n == nil {
				want = append(want, "any")
			} else {
				want = append(want, fmt.Sprint(*n))
			}
		}
		what += " if " + strings.Join(want, ",")
	}
	if output == nil {
		return what + " -> ?"
	}
	return fmt.Sprintf("%s -> %+v", what, output.(keyAnswer))
}
