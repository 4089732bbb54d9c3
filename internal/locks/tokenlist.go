package locks

import (
	"context"
	"strings"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// TokenState says whether a token is held. The numbers are those of the API.
type TokenState int

// The states of a token.
const (
	Available TokenState = 1 + iota
	Taken
	Contested // taken, and somebody waits
)

// A TokenStatus is a token as it is shown.
type TokenStatus struct {
	Type, Scope string
	State       TokenState
	Held        Held // of the present grant; nothing without one
	Longest     time.Duration
	Waiting     int
	Role        string    // it was passed to, and nobody of it has collected it
	HolderRole  string    // of the agent that holds it, as of the grant
	ReleasedAt  time.Time // when a hold last ended without a pass; zero = never
	Revision    int64
}

// splitToken splits TYPE/SCOPE; a type has no slash.
func splitToken(name string) (kind, scope string) {
	kind, scope, _ = strings.Cut(name, "/")
	return kind, scope
}

// status shows a token.
func (v *view) status(row *tokenRow, g *grant) TokenStatus {
	s := TokenStatus{State: Available, Longest: row.longest, ReleasedAt: row.released, Revision: row.revision}
	s.Type, s.Scope = splitToken(row.name)
	for _, k := range v.queue.tickets {
		if k.claim.kind == Token && k.claim.token == row.name {
			s.Waiting++
		}
	}
	if g == nil {
		return s
	}
	s.State, s.Held = Taken, v.held(g)
	if s.Waiting > 0 {
		s.State = Contested
	}
	if g.owner.Agent == "" {
		s.Role = g.role
	} else {
		s.HolderRole = g.role
	}
	return s
}

// mostWaiting is how many requests GetToken names.
const mostWaiting = 100

// GetToken returns a token of the caller's session with its queue, and the revision that it is true
// at. fault.NotFound if nobody ever acquired it.
func (t *Table) GetToken(ctx context.Context, c identity.Caller, token string) (s TokenStatus, queue []Place, revision int64, err error) {
	err = t.store.Read(ctx, func(snap *store.Snapshot) error {
		s, queue, revision = TokenStatus{}, nil, snap.Revision()
		session, err := t.dir.Session(snap, c.Session)
		if err != nil {
			return err
		}
		row, err := findToken(snap, session.ID, token)
		if err != nil {
			return err
		}
		if row == nil {
			return fault.Missing("token", short(token), "there is no token %s: nobody has acquired it yet", short(token))
		}
		v, err := t.view(snap, session.ID)
		if err != nil {
			return err
		}
		g, err := findGrant(snap, selectToken, session.ID, token)
		if err != nil {
			return err
		}
		s = v.status(row, g)
		for _, k := range v.queue.tickets {
			if k.claim.kind == Token && k.claim.token == token && len(queue) < mostWaiting {
				queue = append(queue, Place{Ticket: k.number, Owner: k.owner, Reason: k.reason, CreatedAt: k.createdAt, Position: len(queue) + 1, Kept: k.kept})
			}
		}
		return nil
	})
	return s, queue, revision, err
}

// A TokenFilter chooses tokens. What is empty does not restrict, and all that is set must match.
type TokenFilter struct {
	Type  string
	Agent string // that holds it
	State TokenState
}

// A TokenPage is a part of the list of tokens, in the order of their names.
type TokenPage struct {
	Tokens   []TokenStatus
	More     bool // there may be some after the last one
	Last     string
	Revision int64
}

// ListTokens returns tokens of the caller's session after a name, TYPE/SCOPE.
func (t *Table) ListTokens(ctx context.Context, c identity.Caller, f TokenFilter, after string, limit int) (TokenPage, error) {
	var page TokenPage
	err := t.store.Read(ctx, func(snap *store.Snapshot) error {
		page = TokenPage{Revision: snap.Revision(), Last: after}
		session, err := t.dir.Session(snap, c.Session)
		if err != nil {
			return err
		}
		v, err := t.view(snap, session.ID)
		if err != nil {
			return err
		}
		for {
			rows, fences, err := tokensAfter(snap, session.ID, f, page.Last)
			if err != nil || len(rows) == 0 {
				return err
			}
			for i := range rows {
				if len(page.Tokens) == limit {
					page.More = true
					return nil
				}
				var g *grant
				if fences[i] != 0 {
					if g, err = findGrant(snap, selectGrant, fences[i]); err != nil {
						return err
					}
				}
				s := v.status(&rows[i], g)
				page.Last = rows[i].name
				if f.State == 0 || f.State == s.State {
					page.Tokens = append(page.Tokens, s)
				}
			}
		}
	})
	return page, err
}

// tokensAfter reads some tokens, and the fences of those that are held.
func tokensAfter(q store.Querier, session int64, f TokenFilter, after string) (found []tokenRow, fences []int64, err error) {
	end := "\U0010FFFF"
	if f.Type != "" {
		after, end = max(after, f.Type+"/"), f.Type+"0" // what follows the slash
	}
	rows := q.Query(selectTokens, session, after, end, f.Agent, f.Agent, grantPage)
	defer rows.Close()
	for rows.Next() {
		var r tokenRow
		var fence int64
		if err := rows.Scan(&r.name, &r.longest, &r.revision, &r.released, &r.passed, &fence); err != nil {
			return nil, nil, err
		}
		found, fences = append(found, r), append(fences, fence)
	}
	return found, fences, rows.Err()
}
