package histories_test

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/anishathalye/porcupine"

	rules "brokerd/internal/model"
)

// A turnVerb is what is done with locks and tokens. A call that waits is two: it asks, and finds out how it stands.
type turnVerb int

const (
	request turnVerb = iota // what is not free is queued for
	granted                 // what was requested is held, by fence
	queued                  // it still waits, by ticket
	aborted                 // its ticket was aborted, since it would have waited for ever
	take                    // without waiting: it was free, or held already
	busy                    // without waiting: it was not free
	release
	releaseAll
	extend
	fenced // a change elsewhere that carries the fence
	pass   // a token to another client
	list   // all locks and tickets
	look   // at a token
	lapse  // by the broker: of a ticket for which no call waited
	expire // by the broker: of a hold that its owner did not ask for, or did not extend
)

// A turnCall is what was asked.
type turnCall struct {
	verb  turnVerb
	owner int
	ask   int
	fence int64 // extend, fenced, expire; release and pass, if not by name; lapse: the ticket
	to    int   // pass
	cut   bool  // request: it was cut off, and made again
}

// A fate is what became of a request, as far as its client got to know, which may be much later.
type fate struct {
	ticket, fence int64
}

// A turnAnswer is what came back.
type turnAnswer struct {
	fate *fate // request

	done     bool  // it was held
	number   int64 // fence, ticket or revision; 0 = there was no change
	released int   // paths held, requests that waited
	cancel   int
	grants   []place // list, look
	tickets  []place
}

// A place is a grant or a ticket: an owner's, by fence or by its own revision.
type place struct {
	owner, ask int
	number     revision
	fence      int64 // of a ticket: that it will be granted by; 0 = unknown
}

// turns is the state of the model: who holds what, and who waits, in order.
type turns struct {
	menu    *menu
	grants  []place // in no particular order
	tickets []place
	aborted []place // by the broker, and its owner does not know yet
	last    int64   // the highest revision seen
	floor   int64   // what the revisions of this step come after
	wrong   bool    // something got a revision that it cannot have

	// Where several tickets may be aborted, a step is made once for each: which one was chosen, first to last, and how many options
	// there were beyond.
	chosen  []int
	choices int // made
	options int
}

// turnsModel returns the model for a menu. Usually a request that was cut off goes on in its place when it is made again, and what
// became of it is known. A lenient model allows for the rare one whose ticket was aborted before: it was made twice.
func turnsModel(m *menu, lenient bool) model {
	all := porcupine.NondeterministicModel{
		Init: func() []any { return []any{turns{menu: m}} },
		Step: func(state, input, output any) []any {
			var next []any
			for open := [][]int{nil}; len(open) > 0; open = open[1:] {
				t := state.(turns).clone()
				t.chosen = open[0]
				ok := t.call(input.(turnCall), output, lenient)
				for n := range t.options { // it came to a choice that was not made
					open = append(open, append(slices.Clone(t.chosen), n))
				}
				if t.options == 0 && ok && !t.wrong {
					t.chosen = nil
					next = append(next, t)
				}
			}
			return next
		},
		Equal:             func(a, b any) bool { return a.(turns).equal(b.(turns)) },
		Hash:              func(s any) uint64 { return s.(turns).hash() },
		DescribeOperation: func(input, output any) string { return describeTurns(m, input.(turnCall), output) },
		DescribeState:     func(s any) string { return s.(turns).String() },
	}
	return all.ToModel()
}

// call goes on by a call, answered or not.
func (t *turns) call(c turnCall, output any, lenient bool) bool {
	if output == nil {
		t.maybe(c)
		return true
	}
	a := output.(turnAnswer)
	if c.cut && lenient {
		a.fate = &fate{}
	}
	return t.step(c, a)
}

// step goes on by an answered call, and reports whether it may be answered like that.
func (t *turns) step(c turnCall, a turnAnswer) bool {
	held, waits := at(t.grants, c.owner, c.ask), at(t.tickets, c.owner, c.ask)
	switch c.verb {
	case request:
		if held < 0 && waits < 0 {
			t.request(c, *a.fate)
		}
		return true
	case granted:
		return held >= 0 && t.learn(&t.grants[held], a.number)
	case queued:
		return waits >= 0 && t.learn(&t.tickets[waits], a.number)
	case aborted:
		i := at(t.aborted, c.owner, c.ask)
		if i < 0 {
			return false
		}
		t.aborted = slices.Delete(t.aborted, i, i+1)
		return true
	case take:
		if held < 0 {
			if waits >= 0 || t.blocked(c.owner, c.ask) {
				return false
			}
			t.grant(c.owner, c.ask, a.number)
			held = at(t.grants, c.owner, c.ask)
		}
		return held >= 0 && t.learn(&t.grants[held], a.number)
	case busy:
		return held < 0 && waits < 0 && t.blocked(c.owner, c.ask)
	case extend:
		return t.holds(c) == a.done
	case fenced:
		return t.holds(c) == a.done && (!a.done || t.seen(a.number))
	case pass:
		held := t.holds(c)
		if held && a.done {
			t.pass(c, a.number)
		}
		return held == a.done
	case release, releaseAll:
		released, cancelled := t.release(c)
		if token := t.menu.asks[c.ask].token != ""; token && c.verb == release {
			a.released, a.cancel = released, cancelled // the answer says only whether there was something
			if a.done != (released+cancelled > 0) {
				return false
			}
		}
		if released != a.released || cancelled != a.cancel || (a.number != 0) != (released+cancelled > 0) || a.number != 0 && !t.seen(a.number) {
			return false
		}
		t.settle()
		return true
	case lapse:
		return t.lost(&t.tickets, c, a)
	case expire:
		return t.lost(&t.grants, c, a)
	default:
		return t.sees(c, a)
	}
}

// lost ends a ticket or a hold that the broker has ended.
func (t *turns) lost(from *[]place, c turnCall, a turnAnswer) bool {
	i := at(*from, c.owner, c.ask)
	if i < 0 || !t.learn(&(*from)[i], c.fence) || !t.seen(a.number) {
		return false
	}
	*from = slices.Delete(*from, i, i+1)
	t.settle()
	return true
}

// maybe goes on by a change that nobody answered, or by a request that was perhaps made twice.
func (t *turns) maybe(c turnCall) {
	switch {
	case c.verb == request && at(t.grants, c.owner, c.ask) < 0 && at(t.tickets, c.owner, c.ask) < 0:
		t.request(c, fate{})
	case c.verb == pass && t.holds(c):
		t.pass(c, 0)
	case c.verb == release, c.verb == releaseAll:
		t.release(c)
		t.settle()
	}
}

// request grants what is free and queues for what is not.
func (t *turns) request(c turnCall, f fate) {
	if i := at(t.aborted, c.owner, c.ask); i >= 0 { // nobody was told: its client asks anew
		t.aborted = slices.Delete(t.aborted, i, i+1)
	}
	if !t.blocked(c.owner, c.ask) {
		t.grant(c.owner, c.ask, f.fence)
	} else {
		t.tickets = append(t.tickets, place{c.owner, c.ask, t.new(f.ticket), f.fence})
		t.untangle(c.owner)
	}
	t.settle()
}

// new is the revision of what happens now: one that is known, or 0. What happens in one step may get its revisions in any order.
func (t *turns) new(n int64) revision {
	if n == 0 {
		return after(t.floor)
	}
	t.wrong = n <= t.floor || t.wrong
	t.last = max(t.last, n)
	return revision{n: n}
}

// grant makes a grant; its fence may be unknown.
func (t *turns) grant(owner, ask int, fence int64) {
	t.grants = append(t.grants, place{owner, ask, t.new(fence), 0})
	t.untangle(owner)
}

// settle grants, in their order, the tickets that nobody is in the way of.
func (t *turns) settle() {
	for t.options == 0 {
		i := t.queue().Next()
		if i < 0 {
			return
		}
		k := t.tickets[i]
		t.tickets = slices.Delete(t.tickets, i, i+1)
		t.grant(k.owner, k.ask, k.fence)
	}
}

// queue returns the grants and tickets with the rules of their order.
func (t *turns) queue() *rules.Queue[place] {
	return &rules.Queue[place]{Held: t.grants, Waiting: t.tickets, Owner: func(p place) int { return p.owner },
		Conflicts: func(a, b place) bool { return t.menu.conflicts[a.ask][b.ask] }}
}

// blocked reports whether a new request would wait.
func (t *turns) blocked(owner, ask int) bool {
	return !t.queue().Free(place{owner: owner, ask: ask}, len(t.tickets))
}

// untangle aborts the youngest ticket of a circle of holders that an owner is part of, until there is none. Where there are several
// circles, any may be the first.
func (t *turns) untangle(owner int) {
	for t.options == 0 {
		found := t.queue().Cycles(owner)
		if len(found) == 0 {
			return
		}
		n := 0
		if len(found) > 1 {
			if t.choices == len(t.chosen) {
				t.options = len(found)
				return
			}
			n = t.chosen[t.choices]
			t.choices++
		}
		i := found[n]
		t.aborted = append(t.aborted, t.tickets[i])
		t.tickets = slices.Delete(t.tickets, i, i+1)
	}
}

// release ends what a call names, and returns how many paths were held and how many requests waited.
func (t *turns) release(c turnCall) (released, cancelled int) {
	named := func(p place) bool {
		switch {
		case p.owner != c.owner:
			return false
		case c.verb == releaseAll:
			return t.menu.asks[p.ask].token == ""
		case c.fence != 0:
			_, is := p.number.is(c.fence)
			return is && p.ask == c.ask
		default:
			return p.ask == c.ask
		}
	}
	for _, g := range t.grants {
		if named(g) {
			released += max(1, len(t.menu.asks[g.ask].paths))
		}
	}
	t.grants = slices.DeleteFunc(t.grants, named)
	for _, k := range t.tickets {
		if named(k) && c.fence == 0 {
			cancelled++
		}
	}
	if c.fence == 0 {
		t.tickets = slices.DeleteFunc(t.tickets, named)
	}
	return released, cancelled
}

// pass gives a token to another, whatever the queue.
func (t *turns) pass(c turnCall, fence int64) {
	i := at(t.grants, c.owner, c.ask)
	t.grants[i] = place{c.to, c.ask, t.new(fence), 0}
	if i := at(t.tickets, c.to, c.ask); i >= 0 {
		t.tickets = slices.Delete(t.tickets, i, i+1)
	}
	t.untangle(c.to)
	t.settle()
}

// holds reports whether the caller holds what it names by fence.
func (t *turns) holds(c turnCall) bool {
	return slices.ContainsFunc(t.grants, func(g place) bool {
		_, is := g.number.is(c.fence)
		return g.owner == c.owner && g.ask == c.ask && is
	})
}

// sees compares with what somebody was shown.
func (t *turns) sees(c turnCall, a turnAnswer) bool {
	shown := func(p place) bool {
		token := t.menu.asks[p.ask].token != ""
		return c.verb == list && !token || c.verb == look && p.ask == c.ask
	}
	var grants, tickets int
	for i := range t.grants {
		if !shown(t.grants[i]) {
			continue
		}
		j := at(a.grants, t.grants[i].owner, t.grants[i].ask)
		if grants++; j < 0 || !t.learn(&t.grants[i], a.grants[j].number.n) {
			return false
		}
	}
	for i := range t.tickets {
		if !shown(t.tickets[i]) {
			continue
		}
		if tickets >= len(a.tickets) {
			return false
		}
		k := a.tickets[tickets]
		if tickets++; k.owner != t.tickets[i].owner || k.ask != t.tickets[i].ask || !t.learn(&t.tickets[i], k.number.n) {
			return false
		}
	}
	if grants != len(a.grants) || tickets != len(a.tickets) || a.number < t.last {
		return false
	}
	t.last = a.number
	t.bound(a.number + 1)
	return true
}

// learn notes the fence or ticket of a place.
func (t *turns) learn(p *place, n int64) bool {
	ok := false
	p.number, ok = p.number.is(n)
	t.last = max(t.last, n)
	return ok
}

// seen notes the revision of a change: it must be a new one.
func (t *turns) seen(n int64) bool {
	if n <= t.last {
		return false
	}
	t.last, t.floor = n, n
	t.bound(n)
	return true
}

// bound notes that what has happened got revisions before n.
func (t *turns) bound(n int64) {
	for _, places := range [][]place{t.grants, t.tickets} {
		for i := range places {
			places[i].number = places[i].number.before(n)
		}
	}
}

// at returns the index of the place of an owner for an ask, -1 if there is none.
func at(places []place, owner, ask int) int {
	return slices.IndexFunc(places, func(p place) bool { return p.owner == owner && p.ask == ask })
}

func (t turns) clone() turns {
	t.choices, t.floor = 0, t.last
	t.grants, t.tickets, t.aborted = slices.Clone(t.grants), slices.Clone(t.tickets), slices.Clone(t.aborted)
	return t
}

// equal compares states; the order of grants does not matter.
func (t turns) equal(o turns) bool {
	return t.last == o.last && slices.Equal(t.tickets, o.tickets) && slices.Equal(sorted(t.grants), sorted(o.grants)) &&
		slices.Equal(sorted(t.aborted), sorted(o.aborted))
}

func sorted(places []place) []place {
	all := slices.Clone(places)
	slices.SortFunc(all, func(a, b place) int { return cmp.Or(a.owner-b.owner, a.ask-b.ask) })
	return all
}

func (t turns) hash() uint64 {
	h := maphash.Comparable(t.menu.seed, t.last)
	for _, g := range t.grants {
		h ^= maphash.Comparable(t.menu.seed, g)
	}
	for i, k := range t.tickets {
		h ^= maphash.Comparable(t.menu.seed, k) * uint64(i+2)
	}
	return h
}
