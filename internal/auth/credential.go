package auth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The noun and the letter of ids.
const (
	noun   = "credential"
	letter = "c"
)

// name returns an id as clients know it.
func name(id int64) string { return work.ID(letter, id) }

// A State is that of a credential. The numbers are those of the API and of the table.
type State int

// The states.
const (
	Active State = iota + 1
	Revoked
	Expired
)

// A Credential is a row of the table, without its secret.
type Credential struct {
	ID           int64 // the revision that issued it
	Revision     int64 // of its last change
	Access       identity.Access
	SessionID    int64 // row id; 0 = any session
	Session      string
	Agent        string
	Role         string
	Description  string
	IssuedAt     time.Time
	ExpiresAt    time.Time // zero = never
	State        State
	EndedAt      time.Time // zero = it is active
	EndReason    string
	LastUsedAt   time.Time // zero = never
	LastUsedFrom string
	Login        bool // issued by Login
}

// endCause returns the error for clients that present the credential, which has ended.
func (c *Credential) endCause() error {
	if c.State == Expired {
		return errExpired(c.ID, c.ExpiresAt)
	}
	return errRevoked(c.ID, c.EndedAt, c.EndReason)
}

// A Draft describes a credential to issue.
type Draft struct {
	Access      identity.Access
	Session     string // empty = any
	Agent       string
	Role        string
	Description string
	TTL         time.Duration // 0 = ExpiresAt
	ExpiresAt   time.Time     // zero = never
	Login       bool          // for the client of a login link
}

// Issued is a new credential.
type Issued struct {
	Credential Credential
	Secret     string // empty if an earlier request with the same id has issued the credential
}

// Issue creates a credential. Errors: fault.NotFound for the session, fault.Exhausted
// (TOO_MANY_CREDENTIALS), and those of package once.
func (r *Registry) Issue(ctx context.Context, req idempotency.Request, d Draft) (Issued, error) {
	secret := newSecret()
	var out Issued
	err := r.store.Write(ctx, func(tx *store.Tx) error {
		var id int64 // all that package once keeps of the answer
		seen, err := req.Do(tx, &id, func() (err error) {
			id, err = r.issue(tx, d, sha256.Sum256([]byte(secret)))
			return err
		})
		if err != nil {
			return err
		}
		out = Issued{}
		if !seen {
			out.Secret = secret
		}
		out.Credential, _, err = find(tx, id)
		return err
	})
	if err != nil {
		return Issued{}, fmt.Errorf("issue credential: %w", err)
	}
	return out, nil
}

func (r *Registry) issue(tx *store.Tx, d Draft, sum [sha256.Size]byte) (int64, error) {
	r.mu.RLock()
	active := len(r.active)
	r.mu.RUnlock()
	if active >= mostActive {
		return 0, fault.New(fault.Exhausted, "TOO_MANY_CREDENTIALS", "%d credentials are active, which is the limit: revoke some", active).
			With("limit", "credentials").With("credentials", strconv.Itoa(mostActive))
	}
	c := Credential{
		Access: d.Access, Session: d.Session, Agent: d.Agent, Role: d.Role, Description: d.Description, IssuedAt: tx.Now(), ExpiresAt: d.ExpiresAt,
		State: Active, Login: d.Login,
	}
	if d.TTL > 0 {
		c.ExpiresAt = c.IssuedAt.Add(d.TTL)
	}
	if c.Session != "" {
		id, err := r.dir.SessionID(tx, c.Session)
		if err != nil {
			return 0, err
		}
		c.SessionID = id
	}
	if err := r.removeOld(tx); err != nil {
		return 0, err
	}
	var err error
	if c.Revision, err = r.append(tx, "credential.issued", 0, &c); err != nil {
		return 0, err
	}
	c.ID = c.Revision
	tx.Exec(insertCredential, c.ID, c.Revision, int(c.Access), c.SessionID, c.Session, c.Agent, c.Role, c.Description, c.IssuedAt,
		c.ExpiresAt, int(c.State), c.EndedAt, c.EndReason, c.LastUsedAt, c.LastUsedFrom, c.Login, sum[:])
	tx.OnCommit(func() { r.add(c, sum) })
	return c.ID, nil
}

// Revoke ends a credential; one that has ended stays as it is. Errors: fault.NotFound, and those of
// package once.
func (r *Registry) Revoke(ctx context.Context, req idempotency.Request, id, reason string) (Credential, error) {
	revision, err := work.ParseID(noun, letter, id)
	if err != nil {
		return Credential{}, missing(id)
	}
	var c Credential
	// The call may end with its own credential: its answer must not be lost for that.
	err = r.store.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		_, err := req.Do(tx, &c, func() error {
			found, known, err := find(tx, revision)
			switch {
			case err != nil:
				return err
			case !known:
				return missing(id)
			}
			c = found
			return r.endNow(tx, &c, Revoked, reason)
		})
		return err
	})
	if err != nil {
		return Credential{}, fmt.Errorf("revoke credential: %w", err)
	}
	r.fillUse(&c)
	return c, nil
}

// Data ends the credentials of a session with it.
func (r *Registry) Data() work.Data { return work.Data{Erase: r.endSession} }

// endSession revokes up to limit credentials of a session that is being deleted, and reports
// whether there may be more.
func (r *Registry) endSession(tx *store.Tx, session int64, limit int) (more bool, err error) {
	var some []Credential
	err = read(tx.Query(selectOfSession, session, limit), func(c Credential, _ []byte) error {
		some = append(some, c)
		return nil
	})
	if err != nil {
		return false, err
	}
	for i := range some {
		if err := r.endNow(tx, &some[i], Revoked, "its session "+some[i].Session+" was deleted"); err != nil {
			return false, err
		}
	}
	return len(some) == limit, nil
}

// endNow ends an active credential, with an event.
func (r *Registry) endNow(tx *store.Tx, c *Credential, state State, reason string) error {
	if c.State != Active {
		return nil
	}
	c.State, c.EndedAt, c.EndReason = state, tx.Now(), reason
	kind := "credential.revoked"
	if state == Expired {
		kind, c.EndedAt = "credential.expired", c.ExpiresAt
	}
	var err error
	if c.Revision, err = r.append(tx, kind, c.ID, c); err != nil {
		return err
	}
	tx.Exec(endCredential, c.Revision, int(c.State), c.EndedAt, c.EndReason, c.ID)
	ended := *c
	tx.OnCommit(func() { r.finish(ended) })
	return nil
}

// A Selection says which credentials to list; empty fields do not restrict.
type Selection struct {
	Session string
	Agent   string
	States  []State
	After   int64 // id
	Limit   int
}

// A Page is a part of a list.
type Page struct {
	Credentials []Credential
	Next        int64 // the id to continue after; 0 = there are no more
	Revision    int64 // at which it is true
}

// List returns the credentials of a selection, oldest first.
func (r *Registry) List(ctx context.Context, s Selection) (Page, error) {
	var states int
	for _, state := range s.States {
		states |= 1 << state
	}
	var p Page
	err := r.store.Read(ctx, func(snap *store.Snapshot) error {
		p = Page{Revision: snap.Revision()}
		rows := snap.Query(listCredentials, s.After, s.Session, s.Session, s.Agent, s.Agent, states, states, s.Limit+1)
		return read(rows, func(c Credential, _ []byte) error {
			if len(p.Credentials) == s.Limit {
				p.Next = p.Credentials[s.Limit-1].ID
				return nil
			}
			r.fillUse(&c)
			p.Credentials = append(p.Credentials, c)
			return nil
		})
	})
	return p, err
}

// append adds an event about a credential; id is 0 for a new one.
func (r *Registry) append(tx *store.Tx, kind string, id int64, c *Credential) (int64, error) {
	details := map[string]any{"access": accessName(c.Access)}
	for key, value := range map[string]string{
		"session": c.Session, "agent": c.Agent, "role": c.Role, "description": c.Description, "reason": c.EndReason,
	} {
		if value != "" {
			details[key] = value
		}
	}
	if !c.ExpiresAt.IsZero() {
		details["expires_at"] = c.ExpiresAt.UTC().Format(time.RFC3339)
	}
	text, err := json.Marshal(details)
	if err != nil {
		return 0, err
	}
	e := events.Entry{
		Category: events.System, Type: kind, Source: identity.System, Details: string(text),
		Summary: fmt.Sprintf("credential for %s %s", c.holder(), strings.TrimPrefix(kind, "credential.")),
	}
	if id != 0 {
		e.Related = []string{name(id)}
	}
	return r.log.Append(tx, e)
}

// accessName returns a level of access as events spell it.
func accessName(a identity.Access) string {
	return [...]string{"none", "observer", "agent", "operator"}[a]
}

// holder names the client that a credential is for.
func (c *Credential) holder() string {
	text := "an " + accessName(c.Access)
	if c.Agent != "" {
		text = "the agent " + c.Agent
	}
	if c.Session != "" {
		text += " in session " + c.Session
	}
	return text
}

// find returns a credential, and whether there is one.
func find(q store.Querier, id int64) (c Credential, known bool, err error) {
	err = read(q.Query(selectCredential, id), func(found Credential, _ []byte) error {
		c, known = found, true
		return nil
	})
	return c, known, err
}

// read passes the rows of a query of credentialColumns and the hash to a function.
func read(rows *store.Rows, to func(c Credential, sum []byte) error) error {
	defer rows.Close()
	for rows.Next() {
		var c Credential
		var access, state int
		var sum []byte
		err := rows.Scan(&c.ID, &c.Revision, &access, &c.SessionID, &c.Session, &c.Agent, &c.Role, &c.Description, &c.IssuedAt, &c.ExpiresAt,
			&state, &c.EndedAt, &c.EndReason, &c.LastUsedAt, &c.LastUsedFrom, &c.Login, &sum)
		if err != nil {
			return err
		}
		c.Access, c.State = identity.Access(access), State(state)
		if err := to(c, sum); err != nil {
			return err
		}
	}
	return rows.Err()
}

func missing(id string) error {
	return fault.Missing(noun, id, "there is no credential %q", id)
}
