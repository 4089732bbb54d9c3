package locks

import (
	"strings"

	"brokerd/internal/store"
)

// spots count what is held where, in memory: most requests for a file or a token find nothing near, and ask no table. They belong to the writer.
type spots struct{ held map[spot]int }

// A spot is a place as lock_paths has it.
type spot struct {
	session int64
	kind    Kind
	place   string
}

// loadSpots counts the rows.
func loadSpots(tx *store.Tx) (*spots, error) {
	p := &spots{held: map[spot]int{}}
	rows := tx.Query(selectSpots)
	defer rows.Close()
	for rows.Next() {
		var s spot
		var kind, n int
		if err := rows.Scan(&s.session, &kind, &s.place, &n); err != nil {
			return nil, err
		}
		s.kind = Kind(kind)
		p.held[s] = n
	}
	return p, rows.Err()
}

// add counts one row more, or with -1 one less, unless the function that changes it is undone.
func (p *spots) add(tx *store.Tx, s spot, n int) {
	p.count(s, n)
	tx.OnUndo(func() { p.count(s, -n) })
}

func (p *spots) count(s spot, n int) {
	if left := p.held[s] + n; left > 0 {
		p.held[s] = left
	} else {
		delete(p.held, s)
	}
}

// none reports whether nothing that is held overlaps a claim's i-th resource. It may miss that, never the opposite.
func (p *spots) none(session int64, c *claim, i int) bool {
	if c.kind == Token {
		return p.held[spot{session, Token, c.token}] == 0
	}
	file := c.paths[i]
	if file.Kind() != File { // something may be held below it
		return false
	}
	name := file.String()
	for end := 0; ; end++ {
		if p.held[spot{session, Lock, name[:end]}] > 0 {
			return false
		}
		next := strings.IndexByte(name[end:], '/')
		if next < 0 {
			return p.held[spot{session, Lock, name}] == 0
		}
		end += next
	}
}
