package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The namespaces that have a meaning of their own.
const (
	Default = "default" // what is meant where none is named
	Global  = "global"  // shared by all sessions
)

// A Type says what a value is. The numbers are those of the API and of the tables.
type Type int

// The types.
const (
	String Type = 1 + iota
	Integer
	Boolean
	JSON
	Document
)

// String returns the name of the type as events spell it.
func (t Type) String() string {
	names := [...]string{"unspecified", "string", "integer", "boolean", "json", "document"}
	if t < 0 || int(t) >= len(names) {
		return names[0]
	}
	return names[t]
}

// A Value is one value, as text: an integer in decimal, a boolean as true or false.
type Value struct {
	Type Type
	Text string
}

// A Name names a key.
type Name struct{ Namespace, Key string }

// String returns namespace/key, for people.
func (n Name) String() string { return n.Namespace + "/" + n.Key }

// An Entry is one key at one version.
type Entry struct {
	Name
	Type         Type
	Value        string `json:"-"` // empty for a document and for a deleted key
	Version      int64
	Revision     int64
	Author       string
	ChangedAt    time.Time
	CreatedAt    time.Time // when the key was made since it was last deleted
	ExpiresAt    time.Time // zero = never
	Owner        string
	TaskID       string // the task that the key belongs to
	Deleted      bool
	Entries      int      // of a document
	Contributors []string // of a document as it is now: who wrote it, in order of their first entry
	Appended     *Section // of a document's version: what it added
}

// A Section is one entry of a document.
type Section struct {
	Number   int
	Author   string
	At       time.Time
	Revision int64
	TaskID   string // of the document when it was added
	Text     string `json:"-"`
}

// An Author is who makes a change.
type Author struct {
	Session int64  // row id
	Name    string // of the agent, or "system"
	Role    string
	Agent   bool // it is an agent
	All     bool // it may write what others own
}

// A Disk says whether the disk takes more data.
type Disk interface {
	// Check returns fault.Exhausted if the disk is too full for changes. It must be quick.
	Check() error
}

// Keys keeps the state. Its methods may be called concurrently.
type Keys struct {
	store *store.Store
	log   *events.Log
	dir   *directory.Directory
	clock clockwork.Clock
	zap   *zap.Logger

	disk     Disk // nil = the disk always takes more
	hub      *hub
	calendar *deadline.Queue[struct{}] // when the next key expires
	pruner   *pruner
	backlog  *work.Backlog // of changes of many keys

	stop     context.CancelFunc // ends the runners
	runners  sync.WaitGroup
	draining sync.Once
	drained  chan struct{} // closed when watches are to end
}

// New returns the keys of a store that was opened with Migrations. They do nothing by themselves until Start.
func New(st *store.Store, log *events.Log, dir *directory.Directory, clock clockwork.Clock, logger *zap.Logger) *Keys {
	k := &Keys{store: st, log: log, dir: dir, clock: clock, zap: logger, hub: newHub(), stop: func() {}, drained: make(chan struct{})}
	k.calendar = deadline.NewCalendar(clock, func([]struct{}) { k.expireDue() })
	k.pruner = newPruner(k)
	k.backlog = work.NewBacklog(st, "state", clock, logger, k.doChore)
	return k
}

// UseDisk has puts and appends refused when the disk is too full. It is called before Start.
func (k *Keys) UseDisk(d Disk) { k.disk = d }

// Start begins what runs by itself: the ends of times to live, and the removal of old versions.
func (k *Keys) Start(ctx context.Context) error {
	if err := k.pruner.load(ctx); err != nil {
		return err
	}
	ctx, k.stop = context.WithCancel(context.WithoutCancel(ctx))
	k.calendar.Set(struct{}{}, k.clock.Now())
	k.runners.Go(func() { k.calendar.Run(ctx) })
	k.runners.Go(func() { k.pruner.run(ctx) })
	return k.backlog.Start(ctx)
}

// Drain ends the watches: their streams end as fault.Unavailable (SHUTTING_DOWN). Draining twice is fine.
func (k *Keys) Drain() { k.draining.Do(func() { close(k.drained) }) }

// Stop ends the runners and waits for them.
func (k *Keys) Stop() {
	k.stop()
	k.runners.Wait()
	k.backlog.Stop()
}

// scopeOf returns where the keys of a namespace are.
func scopeOf(session int64, namespace string) int64 {
	if namespace == Global {
		return 0
	}
	return session
}

// A row is a key as its table has it.
type row struct {
	Name
	scope        int64
	id           int64 // 0 = there is none
	kind         Type
	version      int64
	revision     int64
	current      int64
	first        int64
	createdAt    time.Time
	expiresAt    time.Time
	owner        string
	ownerSession int64
	deleted      bool
	entries      int
	bytes        int64
	contributors string // JSON list
	task         string
	plain        bool // as it is stored it isPlain
}

// find reads a key.
func find(q store.Querier, scope int64, n Name) (row, error) {
	r := row{Name: n, scope: scope}
	var kind int
	err := q.QueryRow(selectKey, scope, n.Namespace, n.Key).Scan(&r.id, &kind, &r.version, &r.revision, &r.current, &r.first,
		&r.createdAt, &r.expiresAt, &r.owner, &r.ownerSession, &r.deleted, &r.entries, &r.bytes, &r.contributors, &r.task)
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return row{}, fmt.Errorf("look up key %s: %w", n, err)
	}
	r.kind = Type(kind)
	r.plain = r.id != 0 && r.isPlain()
	return r, nil
}

// isPlain reports whether the key is there and has nothing but a value.
func (r *row) isPlain() bool {
	return !r.deleted && r.kind != Document && r.expiresAt.IsZero() && r.owner == "" && r.task == ""
}

// open makes a key that is not there one that is.
func (r *row) open(id int64, now time.Time) {
	if r.id == 0 || r.deleted {
		r.deleted, r.first, r.createdAt = false, id, now
	}
}

// bury makes a key one that is not there.
func (r *row) bury() {
	r.deleted, r.expiresAt, r.owner, r.ownerSession = true, time.Time{}, "", 0
	r.entries, r.bytes, r.contributors, r.task = 0, 0, "", ""
}

// lapsed reports whether the key is there and its time to live is over.
func (r *row) lapsed(now time.Time) bool {
	return r.id != 0 && !r.deleted && !r.expiresAt.IsZero() && !r.expiresAt.After(now)
}

// present returns the revision of a key that is there, 0 for one that is not.
func (r *row) present(now time.Time) int64 {
	if r.id == 0 || r.deleted || r.lapsed(now) {
		return 0
	}
	return r.revision
}

func (r *row) missing() error {
	return fault.Missing("key", r.String(), "there is no key %q in the namespace %q", r.Key, r.Namespace)
}

// complete adds what only the key's own row knows of its newest version.
func (r *row) complete(e *Entry) error {
	e.Owner = r.owner
	if r.kind != Document || r.deleted {
		return nil
	}
	e.Entries = r.entries
	return json.Unmarshal([]byte(r.contributors), &e.Contributors)
}

// scanVersion reads the columns of versionColumns and the value, and what is given besides.
func scanVersion(rows *store.Rows, more ...any) (id int64, e Entry, err error) {
	var kind, number int
	err = rows.Scan(append([]any{&id, &e.Namespace, &e.Key, &e.Version, &e.Revision, &kind, &e.Author, &e.ChangedAt, &e.CreatedAt,
		&e.ExpiresAt, &e.Owner, &e.Deleted, &number, &e.TaskID, &e.Value}, more...)...)
	if err != nil {
		return 0, e, err
	}
	e.Type = Type(kind)
	if e.Type == Document && !e.Deleted {
		e.Entries = number
		e.Appended = &Section{Number: number, Author: e.Author, At: e.ChangedAt, Revision: e.Revision, TaskID: e.TaskID, Text: e.Value}
		e.Value = ""
	}
	return id, e, nil
}

// size is about how many bytes an entry takes, on the wire and in memory.
func (e *Entry) size() int {
	n := overheadBytes + len(e.Namespace) + len(e.Key) + len(e.TaskID) + len(e.Value)
	if e.Appended != nil {
		n += len(e.Appended.Text)
	}
	return n
}
