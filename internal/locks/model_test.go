package locks_test

import (
	"slices"
	"strings"

	"brokerd/internal/locks"
)

// An owner is an agent with a holder.
type owner struct{ agent, holder string }

// A request is a grant or a ticket of the model.
type request struct {
	owner  owner
	shared bool
	names  []string
	paths  []locks.Path
	number int64 // the fence or the ticket
}

// A model is the rules of doc.go, written down with loops over everything.
type model struct {
	held  []*request // by fence
	queue []*request // by ticket
}

func (r *request) conflicts(o *request) bool {
	if r.owner == o.owner || r.shared && o.shared {
		return false
	}
	return slices.ContainsFunc(r.paths, func(p locks.Path) bool {
		return slices.ContainsFunc(o.paths, func(q locks.Path) bool { return locks.Overlaps(p, q) })
	})
}

// covers reports whether holding r is holding o.
func (r *request) covers(o *request) bool {
	if r.shared && !o.shared {
		return false
	}
	for _, p := range o.paths {
		inside := slices.ContainsFunc(r.paths, func(q locks.Path) bool {
			return p.String() == q.String() || q.Kind() == locks.Dir && strings.HasPrefix(p.Prefix(), q.String()) ||
				q.Kind() == locks.Glob && p.Kind() == locks.File && locks.Overlaps(p, q)
		})
		if !inside {
			return false
		}
	}
	return true
}

func (r *request) same(o *request) bool {
	return r.owner == o.owner && r.shared == o.shared && slices.Equal(r.names, o.names)
}

// waits reports whether one owner waits for another, directly or not: for what it holds, or behind a ticket of it.
func (m *model) waits(from, to owner) bool {
	seen := map[owner]bool{from: true}
	for todo := []owner{from}; len(todo) > 0; todo = todo[1:] {
		for i, t := range m.queue {
			if t.owner != todo[0] {
				continue
			}
			for _, next := range slices.Concat(m.held, m.queue[:i]) {
				if !t.conflicts(next) {
					continue
				}
				if next.owner == to {
					return true
				}
				if !seen[next.owner] {
					seen[next.owner] = true
					todo = append(todo, next.owner)
				}
			}
		}
	}
	return false
}

// obstacles returns who is in the way of a request.
func (m *model) obstacles(r *request) []*request {
	var found []*request
	for _, h := range m.held {
		if r.conflicts(h) {
			found = append(found, h)
		}
	}
	for _, t := range m.queue {
		if t == r {
			break
		}
		if r.conflicts(t) && !m.waits(t.owner, r.owner) {
			found = append(found, t)
		}
	}
	return found
}

// position counts the owners among the obstacles.
func (m *model) position(r *request) int {
	owners := map[owner]bool{}
	for _, o := range m.obstacles(r) {
		owners[o.owner] = true
	}
	return len(owners)
}

// closes reports whether a ticket is part of a circle in which every ticket waits for a grant of the next one's owner and none is younger.
func (m *model) closes(r *request) bool {
	seen := map[owner]bool{}
	todo := []*request{r}
	for ; len(todo) > 0; todo = todo[1:] {
		for _, h := range m.held {
			if !todo[0].conflicts(h) {
				continue
			}
			if h.owner == r.owner {
				return true
			}
			if seen[h.owner] {
				continue
			}
			seen[h.owner] = true
			for _, t := range m.queue {
				if t.owner == h.owner && (t.number < r.number || r.number == 0) {
					todo = append(todo, t)
				}
			}
		}
	}
	return false
}

// tangled reports whether there is a circle.
func (m *model) tangled() bool { return slices.ContainsFunc(m.queue, m.closes) }

// next returns the first ticket that nobody is in the way of, nil if there is none.
func (m *model) next() *request {
	for _, t := range m.queue {
		if len(m.obstacles(t)) == 0 {
			return t
		}
	}
	return nil
}

func (m *model) leave(t *request) {
	m.queue = slices.DeleteFunc(slices.Clone(m.queue), func(o *request) bool { return o == t })
}
