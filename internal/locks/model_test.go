package locks_test

import (
	"slices"
	"strings"

	"brokerd/internal/locks"
	"brokerd/internal/model"
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

func newModel() model.Queue[*request] {
	return model.Queue[*request]{
		Owner: func(r *request) int { return r.owner.number() },
		Conflicts: func(r, o *request) bool {
			return !(r.shared && o.shared) && slices.ContainsFunc(r.paths, func(p locks.Path) bool {
				return slices.ContainsFunc(o.paths, func(q locks.Path) bool { return locks.Overlaps(p, q) })
			})
		},
	}
}

// number is that of one of names with the holder "" or "h".
func (o owner) number() int { return 2*slices.Index(names, o.agent) + len(o.holder) }

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

// position counts the owners of the obstacles of a request behind the first tickets.
func (c *comparison) position(r *request, first int) int {
	owners := map[owner]bool{}
	for o := range c.model.Obstacles(r, first) {
		owners[o.owner] = true
	}
	return len(owners)
}

// closes reports whether a request would be the youngest in a cycle.
func (c *comparison) closes(r *request) bool {
	with := c.model
	with.Waiting = append(slices.Clone(with.Waiting), r)
	return slices.Contains(with.Cycles(r.owner.number()), len(c.model.Waiting))
}

// tangled reports whether there is a cycle.
func (c *comparison) tangled() bool {
	return slices.ContainsFunc(c.model.Waiting, func(t *request) bool { return len(c.model.Cycles(t.owner.number())) > 0 })
}

func (c *comparison) leave(t *request) {
	c.model.Waiting = slices.DeleteFunc(slices.Clone(c.model.Waiting), func(o *request) bool { return o == t })
}
