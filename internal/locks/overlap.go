package locks

import (
	"math/bits"
	"strings"
	"unicode/utf8"

	"brokerd/internal/validate"
)

// Overlaps reports whether some file could be covered by both paths. It is exact and symmetric.
//
// A file is a row of one or more segments, none of them empty. What covers it:
//
//	a.go, src/a.go   that file, and nothing else: not what would lie below if it were a directory
//	src/             every file below src, at any depth; a file of the name src is not one
//	src/*.go         every file that matches, segment by segment, and nothing below it: src/* covers src/x, but not src/x/y
//	src/*/, src/**   every file below what comes before the end
//
// So src/* and src/x/ do not overlap, since what lies below src/x has one segment more than src/* matches; src/*/ and src/x/ do, as do src/** and src/x/.
// A glob in front of a literal rest, such as **/a, matches none of the segments too: a.
//
// The time is bounded by the product of the two lengths over 64, whatever the globs look like.
func Overlaps(a, b Path) bool {
	if a.glob == nil && b.glob == nil {
		return a.contains(b) || b.contains(a)
	}
	if !compatible(a, b) {
		return false
	}
	// One is taken step by step, the other at all its places at once: the one without wildcards, or else the longer one, is the former.
	if b.glob == nil || a.glob != nil && len(b.glob.symbols) > len(a.glob.symbols) {
		a, b = b, a
	}
	return b.glob.meets(a)
}

// contains is for files and directories: it reports whether a covers all of b.
func (p Path) contains(b Path) bool {
	return p.text == b.text || p.kind == Dir && strings.HasPrefix(b.text, p.text)
}

// compatible compares the literal beginnings and ends, which settles most pairs.
func compatible(a, b Path) bool {
	ah, at := a.literals()
	bh, bt := b.literals()
	if n := min(len(ah), len(bh)); ah[:n] != bh[:n] {
		return false
	}
	n := min(len(at), len(bt))
	return at[len(at)-n:] == bt[len(bt)-n:]
}

// literals returns what every file that the path covers begins and ends with.
func (p Path) literals() (head, tail string) {
	switch p.kind {
	case File:
		return p.text, p.text
	case Dir:
		return p.text, ""
	default:
		return p.glob.head, p.glob.tail
	}
}

// A symbol is one step of a glob: the character that it stands for, or one of the constants below.
type symbol = rune

const (
	one  symbol = -1 - iota // ?: a character that is no /
	some                    // *: any number of those; it may be left at any time
	all                     // any number of any characters; it may be left at any time
	// skip begins the three symbols skip, all, '/', which stand for any number of whole segments: it leads to the next one, or
	// beyond the three. It comes first, or after a '/', so never in a row of them nor after a some.
	skip
)

// A pattern is a glob as an automaton that is in several of its places at a time: place i is in front of symbol i, and the last one is behind all.
type pattern struct {
	symbols    []symbol
	head, tail string // what every match begins and ends with

	loops, alls, skips places // those in front of some and all; of all; of skip
	inner              places // those in front of what can be passed within a segment: of all but '/'
	ascii              [utf8.RuneSelf]uint16
	other              map[rune]int
	takes              []places // the places that a character leads on from; ascii and other say which is whose, the first is that of all others
}

// places is a set of places of a pattern, a bit for each.
type places []uint64

// maxWords is how long a set of places may be: a path has a symbol for each byte, perhaps one more at its end, and a place behind all.
const maxWords = (validate.MaxPath+1)/64 + 1

func (p places) add(i int)      { p[i/64] |= 1 << (i % 64) }
func (p places) has(i int) bool { return p[i/64]>>(i%64)&1 != 0 }

// compile makes the automaton of a glob.
func compile(text string) *pattern {
	g := &pattern{head: text[:strings.IndexAny(text, "*?")]}
	segments := strings.Split(strings.TrimSuffix(text, "/"), "/")
	below := strings.HasSuffix(text, "/")
	for len(segments) > 0 && segments[len(segments)-1] == "**" { // a/** and a/**/ are a/
		below, segments = true, segments[:len(segments)-1]
	}
	if !below {
		g.tail = text[strings.LastIndexAny(text, "*?")+1:]
		if len(segments) > 1 && g.tail == "/"+segments[len(segments)-1] && segments[len(segments)-2] == "**" {
			g.tail = g.tail[1:] // a/**/b is a/b as well, and **/b is b
		}
	}
	for i, s := range segments {
		switch {
		case s != "**":
			g.segment(s)
			if i < len(segments)-1 || below {
				g.symbols = append(g.symbols, '/')
			}
		case i == 0 || segments[i-1] != "**":
			g.symbols = append(g.symbols, skip, all, '/')
		}
	}
	if below {
		g.symbols = append(g.symbols, all)
	}
	g.index()
	return g
}

func (g *pattern) segment(s string) {
	for i, r := range s {
		switch {
		case r == '?':
			r = one
		case r == '*' && i > 0 && s[i-1] == '*':
			continue
		case r == '*':
			r = some
		}
		g.symbols = append(g.symbols, r)
	}
}

// index makes the sets of places.
func (g *pattern) index() {
	words := len(g.symbols)/64 + 1
	set := func() places { return make(places, words) }
	g.loops, g.alls, g.skips, g.inner, g.other = set(), set(), set(), set(), map[rune]int{}
	ones := set()
	g.takes = []places{ones}
	for i, t := range g.symbols {
		switch t {
		case some:
			g.loops.add(i)
		case all:
			g.loops.add(i)
			g.alls.add(i)
		case skip:
			g.skips.add(i)
		case one:
			ones.add(i)
		default:
			n := g.of(t)
			if n == 0 {
				n = len(g.takes)
				g.takes = append(g.takes, set())
				if t < utf8.RuneSelf {
					g.ascii[t] = uint16(n)
				} else {
					g.other[t] = n
				}
			}
			g.takes[n].add(i)
		}
		if t != '/' {
			g.inner.add(i)
		}
	}
	slash := int(g.ascii['/'])
	for n, takes := range g.takes {
		if n != 0 && n != slash {
			for w := range takes {
				takes[w] |= ones[w]
			}
		}
	}
	if slash == 0 { // no ? stands for it
		g.ascii['/'] = uint16(len(g.takes))
		g.takes = append(g.takes, set())
	}
}

// of returns the index of a character in takes.
func (g *pattern) of(r rune) int {
	if r < utf8.RuneSelf {
		return int(g.ascii[r])
	}
	return g.other[r]
}

// meets reports whether the pattern and a path have a file in common.
func (g *pattern) meets(p Path) bool {
	m := intersection{pattern: g}
	m.set = m.sets[0][:len(g.loops)]
	m.set.add(0)
	if p.glob == nil {
		for _, r := range p.text {
			if !m.take(r) {
				return false
			}
		}
		if p.kind == Dir {
			m.fill()
		}
	} else if !m.walk(p.glob.symbols) {
		return false
	}
	m.settle()
	return m.set.has(len(g.symbols))
}

// An intersection takes a path symbol by symbol, and keeps the places where the pattern may be after the same characters.
//
// Neither side minds that some might stand for an empty segment: where it may on both sides, both take a longer one as well.
type intersection struct {
	*pattern
	set  places
	last int // the words of set behind it are 0
	sets [2][maxWords]uint64
}

// walk takes the symbols of another pattern, and reports false as soon as the two have parted.
func (m *intersection) walk(symbols []symbol) bool {
	beyond, due := places(m.sets[1][:len(m.set)]), -1 // places of a skip, and the symbol at which they come back
	for i, t := range symbols {
		if i == due {
			for w := range m.set {
				m.set[w] |= beyond[w]
			}
			m.last = len(m.set) - 1
		}
		switch t {
		case skip:
			m.settle()
			copy(beyond, m.set)
			due = i + 3
		case all:
			m.fill()
		case some:
			m.spread()
		default:
			if !m.take(t) && i+1 != due {
				return false
			}
		}
	}
	return true
}

// settle adds the places that are reached without a character.
func (m *intersection) settle() {
	var skips, loops uint64 // of the word before
	for w := range m.set {
		m.set[w], skips, loops = settle(m.set[w], m.skips[w], m.loops[w], skips, loops)
	}
	m.last = len(m.set) - 1
}

// settle is for one word of a set; it returns which of the places lead into the next one.
func settle(set, skips, loops, skipped, looped uint64) (settled, skipping, looping uint64) {
	s := set & skips
	set |= s<<1 | skipped>>63 | s<<3 | skipped>>61
	l := set & loops
	return set | l<<1 | looped>>63, s, l
}

// take takes one character, or ?. It reports whether a place is left.
func (m *intersection) take(t symbol) bool {
	stay, takes := m.loops, m.inner
	switch t {
	case '/':
		stay, takes = m.alls, m.takes[m.ascii['/']]
	case one: // the loops among inner lead to where settle has been
	default:
		takes = m.takes[m.of(t)]
	}
	n := min(m.last+2, len(m.set))
	set, over, loops := m.set[:n], m.skips[:n], m.loops[:n]
	stay, takes = stay[:n], takes[:n]
	m.last = -1
	var skips, looping, carry uint64 // of the word before
	for w := range set {
		var s uint64
		s, skips, looping = settle(set[w], over[w], loops[w], skips, looping)
		on := s & takes[w]
		s = on<<1 | carry | s&stay[w]
		carry = on >> 63
		if set[w] = s; s != 0 {
			m.last = w
		}
	}
	return m.last >= 0
}

// spread takes any number of characters of a segment: the places reached are those up to behind the next '/'. An addition finds them: its carry runs
// through each row of ones from the first place in it.
func (m *intersection) spread() {
	m.settle()
	var carry uint64
	for w, set := range m.set {
		inner := m.inner[w]
		var sum uint64
		sum, carry = bits.Add64(inner, set&inner, carry)
		m.set[w] |= sum ^ inner
	}
}

// fill takes any number of any characters: all places after the first are reached.
func (m *intersection) fill() {
	m.settle()
	reached := uint64(0)
	for w, set := range m.set {
		m.set[w] = reached | -(set & -set)
		if set != 0 {
			reached = ^uint64(0)
		}
	}
}
