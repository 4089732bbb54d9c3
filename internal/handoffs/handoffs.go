package handoffs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Limits. Those of texts are in bytes.
const (
	MaxText     = 64 << 10
	MaxItem     = 4 << 10 // of a list's item, and of notes
	MaxTarget   = 2 << 10
	MaxItems    = 100 // per list, and fences
	MaxTogether = 512 << 10
	mostPending = 1000 // per session
)

// A State is that of a handoff. The numbers are those of the API and of the table.
type State int

// The states.
const (
	Pending State = iota + 1
	Accepted
	Rejected
	Cancelled
)

// String returns the state as events and brokerctl spell it.
func (s State) String() string {
	return [...]string{"any", "pending", "accepted", "rejected", "cancelled"}[s]
}

// A LinkKind says what a link points to. The numbers are those of the API and of the table.
type LinkKind int

// The kinds.
const (
	StateEntry LinkKind = iota + 1
	Message
	File
	URL
)

// String returns the kind as exports spell it.
func (k LinkKind) String() string { return [...]string{"", "state", "message", "file", "url"}[k] }

// A Link points to context.
type Link struct {
	Kind   LinkKind `json:"kind"`
	Target string   `json:"target"`
	Title  string   `json:"title,omitempty"`
}

// Content describes the work. It is stored as JSON.
type Content struct {
	Background    string   `json:"background,omitempty"` // Markdown
	WorkDone      string   `json:"work_done,omitempty"`  // Markdown
	Artifacts     []string `json:"artifacts,omitempty"`
	Links         []Link   `json:"context_links,omitempty"`
	NextSteps     []string `json:"next_steps,omitempty"`
	KnownIssues   []string `json:"known_issues,omitempty"`
	OpenQuestions []string `json:"open_questions,omitempty"`
}

// An Item is one item of an acceptance checklist. It is stored as JSON.
type Item struct {
	Text      string    `json:"text"`
	CheckedBy string    `json:"checked_by,omitempty"` // empty = unchecked
	CheckedAt time.Time `json:"checked_at,omitzero"`
}

// A GrantKind says what a grant holds. The numbers are those of the API and of the table.
type GrantKind int

// The kinds.
const (
	Task GrantKind = iota + 1
	Lock
	Token
)

// String returns the kind as payloads spell it.
func (k GrantKind) String() string { return [...]string{"", "task", "lock", "token"}[k] }

// A Grant is a claim, lock or token that a handoff transfers. It is stored as JSON.
type Grant struct {
	Kind  GrantKind `json:"kind"`
	Name  string    `json:"name"`
	Fence int64     `json:"fence"`
	New   int64     `json:"new_fence,omitempty"` // once it was transferred
	Lost  bool      `json:"lost,omitempty"`
}

// String names a grant for people.
func (g Grant) String() string { return "the " + g.Kind.String() + " " + g.Name }

// A Handoff is an offer of work.
type Handoff struct {
	ID        int64 // the revision that created it
	Session   int64 // row id
	Revision  int64 // of its last change
	State     State
	Title     string
	Task      string
	From      string // or caller.System
	ToAgent   string // or
	ToRole    string
	Items     int
	Checked   int
	CreatedAt time.Time
	SettledAt time.Time // zero = it is pending
	SettledBy string
	Notes     string // of the agent that settled it

	// Empty in lists.
	Content   Content
	Checklist []Item
	Grants    []Grant
}

// Name returns the id as callers know it.
func (h *Handoff) Name() string { return work.ID(letter, h.ID) }

// To returns the recipient as brokerctl spells it.
func (h *Handoff) To() string {
	if h.ToAgent == "" {
		return "role:" + h.ToRole
	}
	return h.ToAgent
}

// isFor reports whether an agent is the recipient, or one of them.
func (h *Handoff) isFor(a directory.Agent) bool {
	return a.Name != h.From && (h.ToAgent == a.Name || h.ToRole != "" && h.ToRole == a.Role)
}

// The noun and the letter of ids.
const (
	noun   = "handoff"
	letter = "h"
)

// Tasks moves claims of tasks.
type Tasks interface {
	// Fence returns the fence by which an agent holds a task; 0 if it does not hold it.
	Fence(q store.Querier, session int64, task, agent string) (int64, error)
	// Transfer moves the claim of a task to another agent, and returns the new fence.
	Transfer(tx *store.Tx, session int64, task, from, to string) (int64, error)
}

// Locks moves locks and tokens.
type Locks interface {
	// Find returns the lock or token that an agent holds by a fence; found is false if it does not.
	Find(q store.Querier, session int64, agent string, fence int64) (g Grant, found bool, err error)
	// Transfer moves a lock or token to another agent, and returns the new fence.
	Transfer(tx *store.Tx, session, fence int64, from string, to directory.Agent, why string) (int64, error)
}

// Artifacts knows the artifacts of sessions.
type Artifacts interface {
	// Find checks that a session has the artifact NAME or NAME@VERSION. Errors: fault.NotFound.
	Find(q store.Querier, session int64, reference string) error
}

// A Desk keeps the handoffs of all sessions. Its methods may be called concurrently.
type Desk struct {
	store *store.Store
	log   *events.Log
	dir   *directory.Directory
	post  work.Post
	tasks Tasks
	locks Locks
	files Artifacts

	zap *zap.Logger

	observer work.Observer // nil = outcomes are not counted
	hub      *work.Hub[int64]
	backlog  *work.Backlog
}

// New returns the handoffs of a store that was opened with Migrations.
func New(
	st *store.Store, log *events.Log, dir *directory.Directory, post work.Post, tasks Tasks, locks Locks, files Artifacts,
	clock clockwork.Clock, logger *zap.Logger,
) *Desk {
	d := &Desk{
		store: st, log: log, dir: dir, post: post, tasks: tasks, locks: locks, files: files, zap: logger,
		hub: work.NewHub[int64](clock),
	}
	d.backlog = work.NewBacklog(st, "handoffs", clock, logger, d.page)
	return d
}

// Start resumes the backlog.
func (d *Desk) Start() { d.backlog.Start() }

// Stop ends the backlog. It may be called more than once, and without Start.
func (d *Desk) Stop() { d.backlog.Stop() }

// Observe counts outcomes from now on. It is called before the desk is used.
func (d *Desk) Observe(o work.Observer) { d.observer = o }

// Drain ends the calls that wait. It may be called more than once.
func (d *Desk) Drain() { d.hub.Drain() }

// find returns a handoff by the id that a caller gives.
func find(q store.Querier, session int64, id string) (Handoff, error) {
	revision, err := work.ParseID(noun, letter, id)
	if err != nil {
		return Handoff{}, err
	}
	found, err := read(q.Query(selectHandoff, session, revision))
	if err == nil && len(found) == 0 {
		return Handoff{}, work.Missing(noun, id)
	}
	if err != nil {
		return Handoff{}, fmt.Errorf("look up handoff %s: %w", id, err)
	}
	return found[0], nil
}

// read reads the handoffs of a query with headColumns, and contentColumns or noContent.
func read(rows *store.Rows) ([]Handoff, error) {
	var list []Handoff
	defer rows.Close()
	for rows.Next() {
		h, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, h)
	}
	return list, rows.Err()
}

func scan(rows *store.Rows) (Handoff, error) {
	var h Handoff
	var state int
	var content, checklist, grants []byte
	err := rows.Scan(&h.ID, &h.Session, &h.Revision, &state, &h.Title, &h.Task, &h.From, &h.ToAgent, &h.ToRole, &h.Items, &h.Checked,
		&h.CreatedAt, &h.SettledAt, &h.SettledBy, &h.Notes, &content, &checklist, &grants)
	if err != nil {
		return h, err
	}
	h.State = State(state)
	err = errors.Join(json.Unmarshal(content, &h.Content), json.Unmarshal(checklist, &h.Checklist), json.Unmarshal(grants, &h.Grants))
	if err != nil {
		return h, fmt.Errorf("read handoff %d: %w", h.ID, err)
	}
	return h, nil
}

// Get returns a handoff, and waits up to wait until it is not pending. Errors: fault.NotFound.
func (d *Desk) Get(ctx context.Context, c identity.Caller, id string, wait time.Duration) (Handoff, error) {
	var found Handoff
	look := func() (bool, error) {
		err := d.store.Read(ctx, func(snap *store.Snapshot) error {
			s, err := d.dir.Session(snap, c.Session)
			if err != nil {
				return err
			}
			found, err = find(snap, s.ID, id)
			return err
		})
		return found.State != Pending, err
	}
	revision, err := work.ParseID(noun, letter, id)
	if err == nil {
		err = d.hub.Await(ctx, wait, []int64{revision}, look)
	}
	return found, err
}

// A Selection says which handoffs to list; empty fields do not restrict.
type Selection struct {
	States  []State
	From    string
	ToAgent string // handoffs to the role of a registered agent match too
	ToRole  string
	Task    string
	After   int64 // id
	Limit   int
}

// A Page is a part of a list.
type Page struct {
	Handoffs []Handoff // without contents
	Next     int64     // the id to continue after; 0 = there are no more
	Revision int64     // at which it is true
}

// pageBytes bounds the texts of a page, below the 4 MiB that a client accepts.
const pageBytes = 3 << 20

// List returns the handoffs of a selection, oldest first. Errors: fault.NotFound for the session.
func (d *Desk) List(ctx context.Context, c identity.Caller, sel Selection) (Page, error) {
	if err := d.store.CheckResume(sel.After); err != nil {
		return Page{}, err
	}
	var p Page
	err := d.store.Read(ctx, func(snap *store.Snapshot) error {
		p = Page{Revision: snap.Revision()}
		s, err := d.dir.Session(snap, c.Session)
		if err != nil {
			return err
		}
		var to directory.Agent
		if sel.ToAgent != "" {
			if to, _, err = d.dir.Find(snap, s.ID, sel.ToAgent); err != nil {
				return err
			}
		}
		query := listAll
		if slices.Equal(sel.States, []State{Pending}) {
			query = listPending
		}
		var states int
		for _, s := range sel.States {
			states |= 1 << s
		}
		edge := int64(math.MaxInt64)
		if query == listAll { // a limit bounds the others
			err = snap.QueryRow(selectEdge, s.ID, sel.After, work.MostRead-1).Scan(&edge)
			if err == nil {
				p.Next = edge
			} else if !errors.Is(err, store.ErrNoRows) {
				return err
			}
		}
		rows := snap.Query(query, s.ID, sel.After, edge, states, states, sel.From, sel.From, sel.ToAgent, sel.ToAgent, to.Role, to.Role,
			sel.ToRole, sel.ToRole, sel.Task, sel.Task, sel.Limit+1)
		defer rows.Close()
		for size := 0; rows.Next(); {
			h, err := scan(rows)
			if err != nil {
				return err
			}
			if len(p.Handoffs) == sel.Limit || size > pageBytes {
				p.Next = p.Handoffs[len(p.Handoffs)-1].ID
				break
			}
			p.Handoffs = append(p.Handoffs, h)
			size += 1024 + len(h.Title) + len(h.Notes)
		}
		return rows.Close()
	})
	return p, err
}
