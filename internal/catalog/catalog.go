package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
)

// Limits.
const (
	maxTypes  = 200  // types that a session registers
	maxCached = 1000 // sessions whose types are kept in memory
)

// A Catalog knows the types of messages. Its methods may be called concurrently.
type Catalog struct {
	store *store.Store
	log   *events.Log
	dir   *directory.Directory
	plain *msgtype.Set // of sessions that register nothing

	mu      sync.RWMutex            // guards the fields below
	known   map[string]*msgtype.Set // by session
	dropped int                     // how often known was emptied
}

// New returns the catalog of a store that was opened with Migrations.
func New(s *store.Store, log *events.Log, dir *directory.Directory) *Catalog {
	return &Catalog{store: s, log: log, dir: dir, plain: msgtype.NewSet(nil), known: map[string]*msgtype.Set{}}
}

// Types returns the types that a session knows: the built-in ones if there is no such session. It
// reads the database at the first call for a session, and after each registration.
func (c *Catalog) Types(ctx context.Context, session string) (*msgtype.Set, error) {
	c.mu.RLock()
	set, dropped := c.known[session], c.dropped
	c.mu.RUnlock()
	if set != nil {
		return set, nil
	}
	var own []*msgtype.Type
	err := c.store.Read(ctx, func(snap *store.Snapshot) error {
		s, err := c.dir.Session(snap, session)
		if err != nil {
			return err
		}
		own, err = typesOf(snap, s.ID, "", maxTypes)
		return err
	})
	switch {
	case fault.KindOf(err) == fault.NotFound:
		return c.plain, nil // the call fails for that reason later, with a better error
	case err != nil:
		return nil, fmt.Errorf("read message types: %w", err)
	}
	set = c.plain
	if len(own) > 0 {
		set = msgtype.NewSet(own)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped == dropped { // else a registration was committed meanwhile
		if len(c.known) >= maxCached {
			clear(c.known)
		}
		c.known[session] = set
	}
	return set, nil
}

// drop empties the cache after the commit of a change.
func (c *Catalog) drop(tx *store.Tx) {
	tx.OnCommit(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		clear(c.known)
		c.dropped++
	})
}

// A Registered is the outcome of Register.
type Registered struct {
	Type     *msgtype.Type
	Replaced bool
}

// Register adds a type to the caller's session, or replaces the session's definition of it. A
// definition with the name of a built-in type replaces the schema of that type in the session. Names
// and aliases are in snake_case. Errors: fault.Denied (NOT_A_DIRECTOR), fault.Exists (TYPE_TAKEN),
// fault.Exhausted (TOO_MANY_TYPES), and those of Directory.
func (c *Catalog) Register(ctx context.Context, who identity.Caller, req idempotency.Request, d Definition) (Registered, error) {
	var out Registered
	err := c.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &out, func() (err error) {
			out, err = c.register(tx, who, d)
			return err
		})
		return err
	})
	if err != nil {
		return Registered{}, fmt.Errorf("register message type: %w", err)
	}
	return out, nil
}

// A Definition is a type to register.
type Definition struct {
	Name      string
	Aliases   []string // sorted
	Title     string
	Sender    string
	Recipient string
	Example   string
	Schema    string
}

func (c *Catalog) register(tx *store.Tx, who identity.Caller, d Definition) (Registered, error) {
	s, err := c.dir.Session(tx, who.Session)
	if err != nil {
		return Registered{}, err
	}
	agent, err := c.dir.Acting(tx, s.ID, who)
	if err != nil {
		return Registered{}, err
	}
	if !agent.Directs(s) {
		return Registered{}, notADirector(s, agent)
	}
	others, err := namesOf(tx, s.ID)
	if err != nil {
		return Registered{}, err
	}
	if err := free(d, others); err != nil {
		return Registered{}, err
	}
	replaced := others.types[d.Name]
	if !replaced && len(others.types) >= maxTypes {
		return Registered{}, fault.New(fault.Exhausted, "TOO_MANY_TYPES",
			"the session %q has %d registered types, which is the limit: replace one of them", s.Name, maxTypes).
			With("limit", "message_types")
	}
	details, err := json.Marshal(map[string]any{"type": d.Name, "aliases": d.Aliases, "replaced": replaced})
	if err != nil {
		return Registered{}, err
	}
	t := &msgtype.Type{
		Name: d.Name, Aliases: d.Aliases, Family: msgtype.SessionFamily, Title: d.Title, Sender: d.Sender,
		Recipient: d.Recipient, Example: d.Example, Schema: d.Schema, RegisteredBy: who.Name(), RegisteredAt: tx.Now(),
	}
	t.Revision, err = c.log.Append(tx, events.Entry{
		Session: s.ID, Category: events.Message, Type: "message.type_registered", Source: who.Name(), SourceRole: agent.Role,
		Summary: "type " + d.Name + " registered", Details: string(details), Related: []string{d.Name},
	})
	if err != nil {
		return Registered{}, err
	}
	aliases, err := json.Marshal(d.Aliases)
	if err != nil {
		return Registered{}, err
	}
	err = tx.QueryRow(upsertType, s.ID, t.Name, string(aliases), t.Title, t.Sender, t.Recipient, t.Example, t.Schema,
		t.RegisteredBy, t.RegisteredAt, t.Revision).Scan(&t.Version)
	c.drop(tx)
	_, t = msgtype.NewSet([]*msgtype.Type{t}).Lookup(t.Name)
	return Registered{t, replaced}, err
}

// A Page is a part of the list of types.
type Page struct {
	Types    []*msgtype.Type
	More     bool  // there are types after the last one
	Revision int64 // the page is true at this revision
}

// List returns up to limit types after a name, sorted by name: those of a family, or all if family
// is empty, whose names begin with a prefix. Errors: fault.NotFound for an unknown session.
func (c *Catalog) List(ctx context.Context, session, family, prefix, after string, limit int) (Page, error) {
	set, _, revision, err := c.read(ctx, session)
	page := Page{Revision: revision}
	if err != nil {
		return page, fmt.Errorf("list message types: %w", err)
	}
	for _, t := range set.Types(family) {
		if t.Name <= after || !strings.HasPrefix(t.Name, prefix) {
			continue
		}
		if page.More = len(page.Types) == limit; page.More {
			break
		}
		page.Types = append(page.Types, t)
	}
	return page, nil
}

// Get returns a type for any spelling of its name, and the revision at which it is so. Errors:
// fault.NotFound for an unknown type, with near names, and for an unknown session.
func (c *Catalog) Get(ctx context.Context, session, spelling string) (*msgtype.Type, int64, error) {
	set, _, revision, err := c.read(ctx, session)
	if err != nil {
		return nil, 0, fmt.Errorf("get message type: %w", err)
	}
	name, t := set.Lookup(spelling)
	if t == nil {
		return nil, 0, fault.Missing("type", name, "neither the catalog nor the session has a type %q; %s", name,
			nearest.Hint(name, set.Names()))
	}
	return t, revision, nil
}

// A Verdict is what a send does with a type and a payload.
type Verdict struct {
	Type     string // as stored
	Doubt    *msgtype.Doubt
	Nearest  []string // to an unknown type
	Warnings []string
	Refusal  error // the error of the send
}

// Validate returns what a send of a type and a payload does in a session. The payload is JSON.
// Errors: fault.NotFound for an unknown session.
func (c *Catalog) Validate(ctx context.Context, session, spelling, payload string) (Verdict, error) {
	set, s, _, err := c.read(ctx, session)
	if err != nil {
		return Verdict{}, fmt.Errorf("validate payload: %w", err)
	}
	var v Verdict
	v.Type, v.Doubt = set.Check(spelling, payload)
	if v.Doubt != nil && v.Doubt.Unknown {
		v.Nearest = nearest.Names(v.Type, set.Names())
	}
	v.Warnings, v.Refusal = v.Doubt.Judge(s.Types())
	return v, nil
}

// read returns a session, its types, and the revision at which they are so.
func (c *Catalog) read(
	ctx context.Context, session string,
) (set *msgtype.Set, s directory.Session, revision int64, err error) {
	err = c.store.Read(ctx, func(snap *store.Snapshot) (err error) {
		revision = snap.Revision()
		if s, err = c.dir.Session(snap, session); err != nil {
			return err
		}
		own, err := typesOf(snap, s.ID, "", maxTypes)
		set = msgtype.NewSet(own)
		return err
	})
	return set, s, revision, err
}
