package locks

import (
	"strings"

	"brokerd/internal/store"
)

// spots count the held paths and tokens in memory, by where they stand and by their agent. Most requests
// for a file or a token find nothing near, and ask no table. They belong to the writer.
type spots struct {
	held  map[spot]int
	owned map[agentKey]int
}

// An agentKey is an agent of a session.
type agentKey struct {
	session int64
	agent   string
}

func newSpots() *spots { return &spots{held: map[spot]int{}, owned: map[agentKey]int{}} }

// A spot is a place as lock_paths has it.
type spot struct {
	session int64
	kind    Kind
	place   string
}

// loadSpots counts the rows.
func loadSpots(tx *store.Tx) (*spots, error) {
	all := newSpots()
	if err := all.loadOwned(tx); err != nil {
		return nil, err
	}
	rows := tx.Query(selectSpots)
	defer rows.Close()
	for rows.Next() {
		var at spot
		var kind, n int
		if err := rows.Scan(&at.session, &kind, &at.place, &n); err != nil {
			return nil, err
		}
		at.kind = Kind(kind)
		all.held[at] = n
	}
	return all, rows.Err()
}

func (s *spots) loadOwned(tx *store.Tx) error {
	rows := tx.Query(selectOwnedCounts)
	defer rows.Close()
	for rows.Next() {
		var of agentKey
		var n int
		if err := rows.Scan(&of.session, &of.agent, &n); err != nil {
			return err
		}
		s.owned[of] = n
	}
	return rows.Err()
}

// own counts n paths or tokens more of an agent, unless the function that changes it is undone.
func (s *spots) own(tx *store.Tx, of agentKey, n int) {
	s.countOwned(of, n)
	tx.OnUndo(func() { s.countOwned(of, -n) })
}

func (s *spots) countOwned(of agentKey, n int) {
	if left := s.owned[of] + n; left > 0 {
		s.owned[of] = left
	} else {
		delete(s.owned, of)
	}
}

// add counts one row more, or with -1 one less, unless the function that changes it is undone.
func (s *spots) add(tx *store.Tx, at spot, n int) {
	s.count(at, n)
	tx.OnUndo(func() { s.count(at, -n) })
}

func (s *spots) count(at spot, n int) {
	if left := s.held[at] + n; left > 0 {
		s.held[at] = left
	} else {
		delete(s.held, at)
	}
}

// none reports whether nothing that is held overlaps a claim's i-th resource. It may miss that, never the opposite.
func (s *spots) none(session int64, c *claim, i int) bool {
	if c.kind == Token {
		return s.held[spot{session, Token, c.token}] == 0
	}
	file := c.paths[i]
	if file.Kind() != File { // something may be held below it
		return false
	}
	name := file.String()
	for end := 0; ; end++ {
		if s.held[spot{session, Lock, name[:end]}] > 0 {
			return false
		}
		next := strings.IndexByte(name[end:], '/')
		if next < 0 {
			return s.held[spot{session, Lock, name}] == 0
		}
		end += next
	}
}
