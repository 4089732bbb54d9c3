package locks

import (
	"strings"

	"brokerd/internal/store"
)

// spots count the held paths and tokens in memory, by where they stand and by their agent. Most requests
// for a file or a token find nothing near, and ask no table. They belong to the writer.
type spots struct {
	held  store.Memory[spot, int]
	owned store.Memory[agentKey, int]
}

// An agentKey is an agent of a session.
type agentKey struct {
	session int64
	agent   string
}

// A spot is a place as lock_paths has it.
type spot struct {
	session int64
	kind    Kind
	place   string
}

// load counts the rows.
func (s *spots) load(tx *store.Tx) error {
	if err := s.loadOwned(tx); err != nil {
		return err
	}
	rows := tx.Query(selectSpots)
	defer rows.Close()
	for rows.Next() {
		var at spot
		var kind, n int
		if err := rows.Scan(&at.session, &kind, &at.place, &n); err != nil {
			return err
		}
		at.kind = Kind(kind)
		s.held.Set(tx, at, n)
	}
	return rows.Err()
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
		s.owned.Set(tx, of, n)
	}
	return rows.Err()
}

// count counts n more paths or tokens under a key. n may be negative.
func count[K comparable](tx *store.Tx, m *store.Memory[K, int], key K, n int) {
	if left := m.Get(key) + n; left > 0 {
		m.Set(tx, key, left)
	} else {
		m.Delete(tx, key)
	}
}

// none reports whether nothing that is held overlaps a claim's i-th resource. It may miss that, never the opposite.
func (s *spots) none(session int64, c *claim, i int) bool {
	if c.kind == Token {
		return s.held.Get(spot{session, Token, c.token}) == 0
	}
	file := c.paths[i]
	if file.Kind() != File { // something may be held below it
		return false
	}
	name := file.String()
	for end := 0; ; end++ {
		if s.held.Get(spot{session, Lock, name[:end]}) > 0 {
			return false
		}
		next := strings.IndexByte(name[end:], '/')
		if next < 0 {
			return s.held.Get(spot{session, Lock, name}) == 0
		}
		end += next
	}
}
