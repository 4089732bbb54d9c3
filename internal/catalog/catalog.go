package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
)

// Limits.
const (
	maxTypes  = 200  // types that a session registers
	maxCached = 1000 // sessions whose types are kept in memory
)

// A Service knows the types of messages and serves the CatalogService of the API. Its methods may be called
// concurrently.
type Service struct {
	pb.UnimplementedCatalogServiceServer
	store *store.Store
	log   *events.Log
	dir   *directory.Directory
	plain *msgtype.Set // of sessions that register nothing

	mu      sync.RWMutex            // guards the fields below
	known   map[string]*msgtype.Set // by session
	dropped int                     // how often known was emptied
}

// New returns the catalog of a store that was opened with Migrations.
func New(st *store.Store, log *events.Log, dir *directory.Directory) *Service {
	return &Service{store: st, log: log, dir: dir, plain: msgtype.NewSet(nil), known: map[string]*msgtype.Set{}}
}

// Types returns the types that a session knows: the built-in ones if there is no such session. It
// reads the database at the first call for a session, and after each registration.
func (s *Service) Types(ctx context.Context, session string) (*msgtype.Set, error) {
	s.mu.RLock()
	set, dropped := s.known[session], s.dropped
	s.mu.RUnlock()
	if set != nil {
		return set, nil
	}
	var own []*msgtype.Type
	err := s.store.Read(ctx, func(snap *store.Snapshot) error {
		in, err := s.dir.Session(snap, session)
		if err != nil {
			return err
		}
		own, err = typesOf(snap, in.ID, "", maxTypes)
		return err
	})
	switch {
	case fault.KindOf(err) == fault.NotFound:
		return s.plain, nil // the call fails for that reason later, with a better error
	case err != nil:
		return nil, fmt.Errorf("read message types: %w", err)
	}
	set = s.plain
	if len(own) > 0 {
		set = msgtype.NewSet(own)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped == dropped { // else a registration was committed meanwhile
		if len(s.known) >= maxCached {
			clear(s.known)
		}
		s.known[session] = set
	}
	return set, nil
}

// drop empties the cache after the commit of a change.
func (s *Service) drop(tx *store.Tx) {
	tx.OnCommit(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		clear(s.known)
		s.dropped++
	})
}

// A registered is the outcome of a registration, as the broker keeps it for a repeated request.
type registered struct {
	Type     *msgtype.Type
	Replaced bool
}

// register adds a type to the caller's session, or replaces the session's definition of it. A definition with
// the name of a built-in type replaces the schema of that type in the session. Errors: fault.Denied
// (NOT_A_DIRECTOR), fault.Exists (TYPE_TAKEN), fault.Exhausted (TOO_MANY_TYPES), and those of Directory.
func (s *Service) register(tx *store.Tx, who identity.Caller, d *pb.MessageType) (out registered, err error) {
	in, err := s.dir.Session(tx, who.Session)
	if err != nil {
		return out, err
	}
	agent, err := s.dir.Acting(tx, in.ID, who)
	if err != nil {
		return out, err
	}
	if !agent.Directs(in) {
		return out, notADirector(in, agent)
	}
	others, err := namesOf(tx, in.ID)
	if err != nil {
		return out, err
	}
	if err := free(d, others); err != nil {
		return out, err
	}
	out.Replaced = others.types[d.Name]
	if !out.Replaced && len(others.types) >= maxTypes {
		return out, fault.New(fault.Exhausted, "TOO_MANY_TYPES",
			"the session %q has %d registered types, which is the limit: replace one of them", in.Name, maxTypes).
			With("limit", "message_types")
	}
	details, err := json.Marshal(map[string]any{"type": d.Name, "aliases": d.Aliases, "replaced": out.Replaced})
	if err != nil {
		return out, err
	}
	t := &msgtype.Type{
		Name: d.Name, Aliases: d.Aliases, Family: msgtype.SessionFamily, Title: d.Title, Sender: d.Sender,
		Recipient: d.Recipient, Example: d.Example, Schema: d.Schema, RegisteredBy: who.Name(), RegisteredAt: tx.Now(),
	}
	t.Revision, err = s.log.Append(tx, events.Entry{
		Session: in.ID, Category: events.Message, Type: "message.type_registered", Source: who.Name(), SourceRole: agent.Role,
		Summary: "type " + d.Name + " registered", Details: string(details), Related: []string{d.Name},
	})
	if err != nil {
		return out, err
	}
	aliases, err := json.Marshal(d.Aliases)
	if err != nil {
		return out, err
	}
	err = tx.QueryRow(upsertType, in.ID, t.Name, string(aliases), t.Title, t.Sender, t.Recipient, t.Example, t.Schema,
		t.RegisteredBy, t.RegisteredAt, t.Revision).Scan(&t.Version)
	s.drop(tx)
	_, out.Type = msgtype.NewSet([]*msgtype.Type{t}).Lookup(t.Name)
	return out, err
}

// read returns the caller's session, its types, and the revision at which they are so. Errors: fault.NotFound
// for an unknown session.
func (s *Service) read(
	ctx context.Context,
) (set *msgtype.Set, in directory.Session, revision int64, err error) {
	err = s.store.Read(ctx, func(snap *store.Snapshot) (err error) {
		revision = snap.Revision()
		if in, err = s.dir.Session(snap, identity.FromContext(ctx).Session); err != nil {
			return err
		}
		own, err := typesOf(snap, in.ID, "", maxTypes)
		set = msgtype.NewSet(own)
		return err
	})
	return set, in, revision, err
}
