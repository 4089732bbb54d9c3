package msgtype

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"brokerd/internal/nearest"
)

// maxHints is how many hints a set keeps.
const maxHints = 1000

// A Catalog knows the types of sessions. Its method may be called concurrently.
type Catalog interface {
	// Types returns the types that a session knows: the built-in ones if there is no such session.
	Types(ctx context.Context, session string) (*Set, error)
}

// A Set is all types that a session knows. Its types do not change. Its methods may be called
// concurrently.
type Set struct {
	own      map[string]*Type // types of the session, by name and by alias; nil = none
	replaced map[string]*Type // those of them that replace a built-in type, by name; nil = none

	mu    sync.Mutex        // guards hints
	hints map[string]string // for unknown types, by name; a search takes 0.1 ms
}

// NewSet returns the built-in types together with those of a session. A type of the session that has
// the name of a built-in type replaces its schema and example, see over. Otherwise a built-in name or
// alias counts more than one of the session: an upgrade of the broker may bring it.
func NewSet(own []*Type) *Set {
	s := &Set{hints: map[string]string{}}
	if len(own) == 0 {
		return s
	}
	s.own = map[string]*Type{}
	for _, t := range own {
		if b := BuiltIn(t.Name); b != nil && b.Name == t.Name {
			if s.replaced == nil {
				s.replaced = map[string]*Type{}
			}
			t = t.over(b)
			s.replaced[t.Name] = t
		}
		s.own[t.Name] = t
	}
	for _, t := range own {
		for _, alias := range t.Aliases {
			if s.own[alias] == nil {
				s.own[alias] = s.own[t.Name]
			}
		}
	}
	return s
}

// over returns the type of a session that replaces a built-in one. The name, the family, the aliases
// and the meaning as a directive stay as they are built in. The session may add aliases, and texts for
// people in place of the built-in ones.
func (t *Type) over(b *Type) *Type {
	aliases := slices.Concat(b.Aliases, t.Aliases)
	slices.Sort(aliases)
	return &Type{
		Name: b.Name, Aliases: slices.Compact(aliases), Family: b.Family, Title: cmp.Or(t.Title, b.Title),
		Sender: cmp.Or(t.Sender, b.Sender), Recipient: cmp.Or(t.Recipient, b.Recipient), Directive: b.Directive,
		Example: t.Example, Schema: t.Schema,
		RegisteredBy: t.RegisteredBy, RegisteredAt: t.RegisteredAt, Revision: t.Revision, Version: t.Version,
	}
}

// Canonical returns the canonical name of a built-in type for any spelling, and the folded spelling
// of other types.
func Canonical(spelling string) string {
	name, _ := (*Set)(nil).Lookup(spelling)
	return name
}

// Lookup returns the name under which the broker stores a type, for any spelling of it. The type is
// nil if it is unknown.
func (s *Set) Lookup(spelling string) (name string, t *Type) {
	names := builtin().names
	t = names[spelling]
	if t == nil {
		name = Fold(spelling)
		t = names[name]
	}
	switch {
	case s == nil:
	case t == nil:
		t = s.own[name]
	case s.replaced[t.Name] != nil:
		t = s.replaced[t.Name]
	}
	if t == nil {
		return name, nil
	}
	return t.Name, t
}

// Spellings returns the names that messages of the given types may have: the canonical names, and
// for messages that are older than a name in the catalog the names as given.
func (s *Set) Spellings(types []string) []string {
	if len(types) == 0 {
		return nil
	}
	names := make([]string, 0, len(types))
	for _, spelling := range types {
		name, _ := s.Lookup(spelling)
		for _, n := range []string{name, Fold(spelling), spelling} {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return names
}

// Types returns the types of a family, or all if family is empty, sorted by name.
func (s *Set) Types(family string) []*Type {
	var found []*Type
	for _, names := range []map[string]*Type{builtin().names, s.own} {
		for name, t := range names {
			_, taken := s.Lookup(name)
			if name == t.Name && taken == t && (family == "" || t.Family == family) {
				found = append(found, t)
			}
		}
	}
	slices.SortFunc(found, func(a, b *Type) int { return compare(a.Name, b.Name) })
	return found
}

// hint asks whether one of the known names is meant; it is empty if none is alike.
func (s *Set) hint(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hint, ok := s.hints[name]; ok {
		return hint
	}
	if len(s.hints) >= maxHints {
		clear(s.hints)
	}
	var meant []string
	for _, near := range nearest.Names(name, s.Names()) {
		canonical, _ := s.Lookup(near)
		if nearest.Like(name, near) && !slices.Contains(meant, canonical) {
			meant = append(meant, canonical)
		}
	}
	hint := ""
	if len(meant) > 0 {
		hint = "did you mean " + strings.Join(meant, ", ") + "?"
	}
	s.hints[name] = hint
	return hint
}

// Names returns the names and aliases, sorted, as many as package nearest compares.
func (s *Set) Names() []string {
	var names []string
	for _, m := range []map[string]*Type{builtin().names, s.own} {
		for name := range m {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), nearest.Limit)]
}
