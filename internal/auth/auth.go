package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/netip"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Limits.
const (
	mostActive = 10_000
	mostEnded  = 10_000
	keepEnded  = 30 * 24 * time.Hour
)

// A Registry keeps the credentials. Its methods may be called concurrently.
type Registry struct {
	store    *store.Store
	log      *events.Log
	dir      *directory.Directory
	clock    clockwork.Clock
	zap      *zap.Logger
	operator *entry // of the operator's file

	queue    *deadline.Queue[dueKey]
	stop     context.CancelFunc // ends the queue; nil before Start
	runner   sync.WaitGroup     // of the queue
	attempts attempts
	notes    notes
	writing  store.Ending[struct{}] // writes the notes
	links    loginLinks
	others   func(sum [sha256.Size]byte) bool // see AlsoOperators; nil = there are no others

	mu     sync.RWMutex       // guards the fields below
	bySum  map[sumKey]*entry  // all, without the operator's
	byID   map[int64]*entry   // the same
	active map[int64]struct{} // the ids of those that count
}

// A sumKey is the first half of the SHA-256 of a secret.
type sumKey [sha256.Size / 2]byte

// An entry is a credential in memory.
type entry struct {
	id    int64 // 0 = the operator's file
	sum   [sha256.Size]byte
	until time.Time // zero = never expires
	grant identity.Grant
	end   context.CancelCauseFunc // ends the grant
	uses  uses
}

// A dueKey is what the queue waits for: the expiry of a credential or, if that is 0, the end of the
// minute of an address.
type dueKey struct {
	credential int64
	client     netip.Addr
}

// New returns the registry of a store that was opened with Migrations, which recognises the secret of
// the operator's file. Until Start, it recognises no other.
func New(
	s *store.Store, log *events.Log, dir *directory.Directory, operatorSecret string, clock clockwork.Clock,
	logger *zap.Logger,
) *Registry {
	r := &Registry{
		store: s, log: log, dir: dir, clock: clock, zap: logger,
		operator: &entry{sum: sha256.Sum256([]byte(operatorSecret)), grant: identity.Grant{Access: identity.Operator}},
		attempts: attempts{clients: map[netip.Addr]*attempt{}},
		bySum:    map[sumKey]*entry{}, byID: map[int64]*entry{}, active: map[int64]struct{}{},
	}
	r.queue = deadline.NewCalendar(clock, r.due)
	r.writing = store.NewEnding(s, r.writeNotes)
	return r
}

// AlsoOperators has the registry recognise the operators of other replicas as its own: known reports whether a SHA-256 is
// that of such an operator's secret. It is called before Start.
func (r *Registry) AlsoOperators(known func(sum [sha256.Size]byte) bool) { r.others = known }

// Start reads the credentials, and begins to end those that expire.
func (r *Registry) Start(ctx context.Context) error {
	err := r.store.Read(ctx, func(snap *store.Snapshot) error {
		return read(snap.Query(selectAll), func(c Credential, sum []byte) error {
			r.add(c, [sha256.Size]byte(sum))
			return nil
		})
	})
	if err != nil {
		return err
	}
	ctx, r.stop = context.WithCancel(context.Background())
	r.runner.Go(func() { r.queue.Run(ctx) })
	return nil
}

// Stop ends the goroutine of the registry and records the last uses. It may be called more than once,
// and without Start, but only after the last call has ended.
func (r *Registry) Stop() {
	if r.stop == nil {
		return
	}
	r.stop()
	r.runner.Wait()
	r.stop = nil
	if err := r.recordUses(); err != nil {
		r.zap.Warn("cannot record when credentials were last used", zap.Error(err))
	}
}

// Identify returns the grant of a secret that a client presents at a time; an empty secret is none.
// client is the zero value for a client of the Unix socket. Errors: fault.Unauthenticated, and those
// of Refuse.
func (r *Registry) Identify(secret string, client netip.Addr, at time.Time) (*identity.Grant, error) {
	if secret == "" {
		return nil, r.Refuse(client, at, fault.New(fault.Unauthenticated, "CREDENTIAL_REQUIRED",
			"a call over TCP needs a credential; the operator's is in the file %s of the data folder", CredentialFile))
	}
	e := r.find(sha256.Sum256([]byte(secret)))
	if e == nil {
		return nil, r.Refuse(client, at, fault.New(fault.Unauthenticated, "CREDENTIAL_UNKNOWN", "the credential is not valid for this broker"))
	}
	if err := e.ended(at); err != nil {
		// The client has proved that it had the secret: it guesses nothing, and its error stays clear.
		r.fail(client, at, err, 0)
		return nil, err
	}
	r.use(e, client, at)
	return &e.grant, nil
}

// find returns the entry of the SHA-256 of a secret, nil if there is none.
func (r *Registry) find(sum [sha256.Size]byte) *entry {
	r.mu.RLock()
	e := r.bySum[sumKey(sum[:])]
	r.mu.RUnlock()
	if e == nil {
		e = r.operator
	}
	switch {
	case subtle.ConstantTimeCompare(sum[:], e.sum[:]) == 1:
		return e
	case e == r.operator && r.others != nil && r.others(sum):
		return e
	}
	return nil
}

// ended returns the error for a client that presents the credential after its end, nil before.
func (e *entry) ended(at time.Time) error {
	switch {
	case e.id == 0:
		return nil
	case e.grant.Ended.Err() != nil:
		return context.Cause(e.grant.Ended)
	case !e.until.IsZero() && !at.Before(e.until):
		return errExpired(e.id, e.until)
	}
	return nil
}

func errExpired(id int64, at time.Time) error {
	return fault.New(fault.Unauthenticated, "CREDENTIAL_EXPIRED", "the credential %s expired at %s", name(id), at.UTC().Format(time.RFC3339)).
		With("credential", name(id))
}

func errRevoked(id int64, at time.Time, reason string) error {
	text := "the credential " + name(id) + " was revoked at " + at.UTC().Format(time.RFC3339)
	if reason != "" {
		text += ": " + reason
	}
	return fault.New(fault.Unauthenticated, "CREDENTIAL_REVOKED", "%s", text).With("credential", name(id))
}

// add puts a credential of the table into memory.
func (r *Registry) add(c Credential, sum [sha256.Size]byte) {
	e := &entry{id: c.ID, sum: sum, until: c.ExpiresAt}
	e.grant = identity.Grant{Access: c.Access, Session: c.Session, Agent: c.Agent, Role: c.Role}
	if c.Login {
		e.grant.Login = c.ID
	}
	e.grant.Ended, e.end = context.WithCancelCause(context.Background())
	r.mu.Lock()
	r.bySum[sumKey(sum[:])], r.byID[c.ID] = e, e
	if c.EndedAt.IsZero() {
		r.active[c.ID] = struct{}{}
	}
	r.mu.Unlock()
	switch {
	case !c.EndedAt.IsZero():
		e.end(c.endCause())
	case !c.ExpiresAt.IsZero():
		r.queue.Set(dueKey{credential: c.ID}, c.ExpiresAt)
	}
}

// finish ends a credential in memory after the commit of its end.
func (r *Registry) finish(c Credential) {
	r.mu.Lock()
	e := r.byID[c.ID]
	delete(r.active, c.ID)
	r.mu.Unlock()
	r.queue.Remove(dueKey{credential: c.ID})
	if e != nil {
		e.end(c.endCause())
	}
}

// drop takes a removed credential out of memory.
func (r *Registry) drop(id int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.byID[id]; e != nil {
		delete(r.byID, id)
		delete(r.bySum, sumKey(e.sum[:]))
	}
}

// entry returns a credential in memory, nil if there is none.
func (r *Registry) entry(id int64) *entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id]
}
