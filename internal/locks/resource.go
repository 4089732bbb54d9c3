package locks

import (
	"slices"
	"strings"
)

// A Kind says what requests are about. The numbers are those of the tables.
type Kind int

// The kinds: paths, or one token.
const (
	Lock Kind = 1 + iota
	Token
)

// noun is what events and messages call it.
func (k Kind) noun() string {
	if k == Token {
		return "token"
	}
	return "lock"
}

// A Mode says whether others may hold the same. The numbers are those of the API and of the tables.
type Mode int

// The modes.
const (
	Exclusive Mode = 1 + iota
	Shared
)

// String returns the mode as events spell it.
func (m Mode) String() string {
	if m == Shared {
		return "shared"
	}
	return "exclusive"
}

// An Owner is who holds or waits: an agent, and which of its workers.
type Owner struct{ Agent, Holder string }

// String returns the owner as people write it.
func (o Owner) String() string {
	if o.Agent == "" {
		return "nobody yet"
	}
	if o.Holder == "" {
		return o.Agent
	}
	return o.Agent + " (" + o.Holder + ")"
}

// A claim is what a request wants or has.
type claim struct {
	kind  Kind
	mode  Mode
	paths []Path // of a lock: in order, each once
	token string // of a token: TYPE/SCOPE
}

// pathsClaim returns the claim on paths, in any order.
func pathsClaim(mode Mode, paths []Path) claim {
	paths = slices.Clone(paths)
	slices.SortFunc(paths, func(a, b Path) int { return strings.Compare(a.String(), b.String()) })
	return claim{kind: Lock, mode: mode, paths: slices.CompactFunc(paths, func(a, b Path) bool { return a.String() == b.String() })}
}

// names are its resources as people write them.
func (c *claim) names() []string {
	if c.kind == Token {
		return []string{c.token}
	}
	names := make([]string, len(c.paths))
	for i := range c.paths {
		names[i] = c.paths[i].String()
	}
	return names
}

// text is names as the tables keep them. No resource has a line feed in it.
func (c *claim) text() string {
	if c.kind == Lock && len(c.paths) == 1 {
		return c.paths[0].String()
	}
	return strings.Join(c.names(), "\n")
}

// parseClaim reads what text has written.
func parseClaim(kind Kind, mode Mode, text string) (claim, error) {
	c := claim{kind: kind, mode: mode}
	if kind == Token {
		c.token = text
		return c, nil
	}
	for name := range strings.SplitSeq(text, "\n") {
		p, err := Parse(name, false) // it was folded before it was kept, if the session does that
		if err != nil {
			return c, err
		}
		c.paths = append(c.paths, p)
	}
	return c, nil
}

// meets returns a resource of o that c conflicts with; empty for none. The owners are for the caller to look at.
func (c *claim) meets(o *claim) string {
	if c.kind != o.kind || c.mode == Shared && o.mode == Shared {
		return ""
	}
	if c.kind == Token {
		if c.token == o.token {
			return o.token
		}
		return ""
	}
	if len(c.paths)*len(o.paths) > manyPairs {
		return c.meetsMany(o)
	}
	for i := range o.paths {
		for j := range c.paths {
			if Overlaps(c.paths[j], o.paths[i]) {
				return o.paths[i].String()
			}
		}
	}
	return ""
}

// manyPairs is from how many pairs of paths on they are not all compared.
const manyPairs = 64

// meetsMany is meets for two claims on many paths. It goes by the order of the paths, and compares with all only what is a glob, of which there are few.
func (c *claim) meetsMany(o *claim) string {
	var globs []Path
	for _, p := range c.paths {
		if p.Kind() == Glob {
			globs = append(globs, p)
		}
	}
	for _, q := range o.paths {
		if q.Kind() == Glob {
			if slices.ContainsFunc(c.paths, func(p Path) bool { return Overlaps(p, q) }) {
				return q.String()
			}
			continue
		}
		at := q.String()
		if slices.ContainsFunc(above(at), c.has) || q.Kind() == Dir && c.below(at) ||
			slices.ContainsFunc(globs, func(p Path) bool { return Overlaps(p, q) }) {
			return at
		}
	}
	return ""
}

// search returns where a name stands among the paths, or would.
func (c *claim) search(name string) (int, bool) {
	return slices.BinarySearchFunc(c.paths, name, func(p Path, name string) int { return strings.Compare(p.String(), name) })
}

// has reports whether a name is one of the paths.
func (c *claim) has(name string) bool {
	_, found := c.search(name)
	return found
}

// below reports whether a file or directory among the paths lies below a directory.
func (c *claim) below(dir string) bool {
	for i, _ := c.search(dir); i < len(c.paths) && strings.HasPrefix(c.paths[i].String(), dir); i++ {
		if c.paths[i].Kind() != Glob {
			return true
		}
	}
	return false
}

// conflicts reports whether two claims exclude each other. It searches for the paths of the smaller claim
// among those of the larger one.
func (c *claim) conflicts(o *claim) bool {
	if len(c.paths) < len(o.paths) {
		c, o = o, c
	}
	return c.meets(o) != ""
}

// pairs returns about how many pairs of paths conflicts compares.
func (c *claim) pairs(o *claim) int {
	if c.kind != o.kind || c.kind == Token || c.mode == Shared && o.mode == Shared {
		return 1
	}
	n, m := len(c.paths), len(o.paths)
	pairs := n * m
	if pairs > manyPairs {
		pairs = min(pairs, searchCost*min(n, m)+(n+m)/manyPairs)
	}
	return pairs + c.globPairs(o) + o.globPairs(c)
}

// searchCost is the cost of the search for one path among many, in pairs that are compared.
const searchCost = 4

// globPairs returns the cost of the comparison of the globs of c with all paths of o.
func (c *claim) globPairs(o *claim) (cost int) {
	for i := range c.paths {
		if c.paths[i].glob == nil {
			continue
		}
		for j := range o.paths {
			cost += 1 + len(c.paths[i].text)*len(o.paths[j].text)/longPair
		}
	}
	return cost
}

// same reports whether two claims are for the same.
func (c *claim) same(o *claim) bool {
	return c.kind == o.kind && c.mode == o.mode && c.token == o.token &&
		slices.EqualFunc(c.paths, o.paths, func(a, b Path) bool { return a.String() == b.String() })
}

// contains reports whether a covers every file that b does; of two different globs it never says so.
func contains(a, b Path) bool {
	switch {
	case a.String() == b.String():
		return true
	case a.Kind() == Dir:
		return strings.HasPrefix(place(b), a.String())
	case a.Kind() == Glob && b.Kind() == File:
		return Overlaps(a, b)
	}
	return false
}

// size counts the paths, or the token.
func (c *claim) size() int { return max(len(c.paths), 1) }

// globs counts the globs among the paths.
func (c *claim) globs() (n int) {
	for _, p := range c.paths {
		if p.Kind() == Glob {
			n++
		}
	}
	return n
}

// broad reports whether it covers more than single files, so that it is found from places below it.
func (c *claim) broad() bool {
	return slices.ContainsFunc(c.paths, func(p Path) bool { return p.Kind() != File })
}

// place is where the index has a path: nothing that a path covers lies outside of its place, if that is a directory.
func place(p Path) string {
	if p.Kind() == Glob {
		return p.Prefix()
	}
	return p.String()
}

// above are the places of all that may cover a place from above, itself included, outermost first.
func above(place string) []string {
	places := []string{""}
	for i := range len(place) {
		if place[i] == '/' {
			places = append(places, place[:i+1])
		}
	}
	if place != "" && !strings.HasSuffix(place, "/") {
		places = append(places, place)
	}
	return places
}

// eachPlace calls fn with the places of a claim as lock_paths has them.
func (c *claim) eachPlace(fn func(place, name string)) {
	if c.kind == Token {
		fn(c.token, "")
		return
	}
	for _, p := range c.paths {
		at, name := place(p), ""
		if p.String() != at {
			name = p.String()
		}
		fn(at, name)
	}
}
