package agents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/caller"
	"brokerd/internal/events"
	"brokerd/internal/once"
	"brokerd/internal/store"
)

// A Status is what an agent says of itself. The numbers are those of the API and of the table.
type Status int

// The statuses; a new registration begins as Initializing.
const (
	Initializing Status = 1 + iota
	Active
	Idle
	Waiting
	Blocked
	Completed
	Terminated
)

// String returns the name of the status as events spell it.
func (s Status) String() string {
	names := [...]string{"unspecified", "initializing", "active", "idle", "waiting", "blocked", "completed", "terminated"}
	if s < 0 || int(s) >= len(names) {
		return names[0]
	}
	return names[s]
}

// A Description is what an agent says of itself when it registers.
type Description struct {
	Role         string
	Capabilities []string // sorted, each once
	Instance     string
	Worktree     string
	Labels       map[string]string
	Lease        time.Duration // how long it is believed alive without being heard of
}

// A Report is what an agent last said of what it does.
type Report struct {
	Status   Status
	Activity string
	TaskID   string
	Progress float64 // 0 to 1
}

// An Agent is a registered participant.
type Agent struct {
	ID      int64
	Session int64 // row id
	Name    string
	Description
	Report
	Incarnation  int64 // how often it has registered, from 1
	RegisteredAt time.Time
	ChangedAt    time.Time
	LastSeen     time.Time // filled by Get, List and Register, and so is Gate
	Revision     int64     // of its last change
	Gate
}

// A Gate is what stands between an agent and its work.
type Gate struct {
	Halted   bool // between a halt and a resume: nothing but directives is handed out to it
	Degraded bool // its circuit breaker is open
}

// Sessions finds sessions.
type Sessions interface {
	// ID returns the row id of a session, or fault.NotFound.
	ID(q store.Querier, name string) (int64, error)
}

// Mail knows what waits for an agent, and what keeps it from it.
type Mail interface {
	// Counts returns the unfinished deliveries in the agent's own mailbox that it has not read, and
	// those that it could claim now, from its own mailbox, its role's and its channels'.
	Counts(q store.Querier, a Agent) (unread, claimable int64, err error)
	// Directives returns the types of the agent's unfinished directives, oldest first, at most 100.
	Directives(q store.Querier, a Agent) ([]string, error)
	// Gated returns the agents of a session that something stands in the way of, by name.
	Gated(q store.Querier, session int64) (map[string]Gate, error)
}

// Fences knows which locks and tokens an agent holds.
type Fences interface {
	// Holds reports whether the agent holds what was granted at a revision.
	Holds(q store.Querier, session int64, agent string, fence int64) (bool, error)
}

// A Registry keeps the agents. It may be used concurrently; hooks and mail are plugged in before it is.
type Registry struct {
	store    *store.Store
	log      *events.Log
	sessions Sessions
	clock    clockwork.Clock
	mail     Mail
	fences   Fences

	registered   []func(tx *store.Tx, a Agent, first bool) error
	deregistered []func(tx *store.Tx, a Agent, reason string) error
	failed       []func(tx *store.Tx, a Agent) ([]Loss, error)

	known    *store.Cache[rowKey, entry] // what Lookup returns
	presence presence
}

// New returns the registry of a store that was opened with Migrations.
func New(s *store.Store, log *events.Log, sessions Sessions, clock clockwork.Clock) *Registry {
	return &Registry{store: s, log: log, sessions: sessions, clock: clock, known: store.NewCache[rowKey, entry](s)}
}

// UseMail plugs in who knows of mail; without it the counts are 0.
func (r *Registry) UseMail(m Mail) { r.mail = m }

// UseFences plugs in who knows of locks and tokens; without it every call that depends on one is refused.
func (r *Registry) UseFences(f Fences) { r.fences = f }

// OnRegister adds what is to happen in the same transaction when an agent registers. first is true
// if it was not registered before.
func (r *Registry) OnRegister(hook func(tx *store.Tx, a Agent, first bool) error) {
	r.registered = append(r.registered, hook)
}

// OnDeregister adds what is to happen in the same transaction when a registration ends: all that
// hangs on it goes. The reason is for people.
func (r *Registry) OnDeregister(hook func(tx *store.Tx, a Agent, reason string) error) {
	r.deregistered = append(r.deregistered, hook)
}

// Register registers the calling agent, or registers it again: then its incarnation grows and its
// description is replaced. fault.NotFound if the session does not exist.
func (r *Registry) Register(ctx context.Context, who caller.Caller, req once.Request, d Description) (Agent, error) {
	var a Agent
	err := r.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &a, func() (err error) {
			a, err = r.register(tx, who, d)
			return err
		})
		return err
	})
	if err != nil {
		return Agent{}, fmt.Errorf("register agent: %w", err)
	}
	return a, nil
}

func (r *Registry) register(tx *store.Tx, who caller.Caller, d Description) (Agent, error) {
	session, err := r.sessions.ID(tx, who.Session)
	if err != nil {
		return Agent{}, err
	}
	a := Agent{Session: session, Name: who.Agent, Description: d, Report: Report{Status: Initializing},
		RegisteredAt: tx.Now(), ChangedAt: tx.Now(), LastSeen: tx.Now()}
	var before bool
	err = tx.QueryRow(selectActing, session, a.Name).Scan(&a.ID, new(string), &a.Incarnation, &before)
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return Agent{}, err
	}
	a.Incarnation++
	a.Revision, err = r.append(tx, a, "agent.registered", fmt.Sprintf("%s registered, incarnation %d", a.Name, a.Incarnation), map[string]any{
		"agent":         a.Name,
		"role":          a.Role,
		"capabilities":  d.Capabilities,
		"incarnation":   a.Incarnation,
		"lease_seconds": d.Lease.Seconds(),
	})
	if err != nil {
		return Agent{}, err
	}
	err = tx.QueryRow(upsertAgent, a.Session, a.Name, a.Role, a.Incarnation, jsonOrNull(len(d.Capabilities), d.Capabilities),
		d.Instance, d.Worktree, jsonOrNull(len(d.Labels), d.Labels), d.Lease, int64(a.Status),
		a.RegisteredAt, a.ChangedAt, a.Revision).Scan(&a.ID)
	if err != nil {
		return Agent{}, err
	}
	r.known.Clear(tx)
	for _, hook := range r.registered {
		if err := hook(tx, a, !before); err != nil {
			return Agent{}, err
		}
	}
	if r.mail != nil {
		gated, err := r.mail.Gated(tx, a.Session)
		if err != nil {
			return Agent{}, err
		}
		a.Gate = gated[a.Name]
	}
	return a, nil
}

// A Heartbeat is what a sign of life reports; nil stays as it is.
type Heartbeat struct {
	Status   *Status
	Activity *string
	TaskID   *string
	Progress *float64
}

// A Standing is what a heartbeat brings back.
type Standing struct {
	Incarnation int64
	Lease       time.Duration
	Unread      int64
	Claimable   int64
	Directives  []string // types of the unfinished ones, oldest first
}

// Heartbeat takes note of what the calling agent reports. It writes nothing if nothing changed.
// fault.Precondition as Acting has it.
func (r *Registry) Heartbeat(ctx context.Context, who caller.Caller, h Heartbeat) (Standing, error) {
	var st Standing
	var news bool
	err := r.store.Read(ctx, func(snap *store.Snapshot) error {
		a, err := r.calling(snap, who)
		if err != nil {
			return err
		}
		news = h.apply(a.Report) != a.Report
		st.Incarnation, st.Lease = a.Incarnation, a.Lease
		if st.Unread, st.Claimable, err = r.counts(snap, a); err != nil || r.mail == nil {
			return err
		}
		st.Directives, err = r.mail.Directives(snap, a)
		return err
	})
	if err == nil && news {
		err = r.store.Write(ctx, func(tx *store.Tx) error { return r.report(tx, who, h) })
	}
	if err != nil {
		return Standing{}, fmt.Errorf("heartbeat: %w", err)
	}
	return st, nil
}

func (h Heartbeat) apply(to Report) Report {
	if h.Status != nil {
		to.Status = *h.Status
	}
	if h.Activity != nil {
		to.Activity = *h.Activity
	}
	if h.TaskID != nil {
		to.TaskID = *h.TaskID
	}
	if h.Progress != nil {
		to.Progress = *h.Progress
	}
	return to
}

// report stores what a heartbeat reports, unless another one has by now.
func (r *Registry) report(tx *store.Tx, who caller.Caller, h Heartbeat) error {
	a, err := r.calling(tx, who)
	if err != nil {
		return err
	}
	before := a.Report
	a.Report = h.apply(before)
	if a.Report == before {
		return nil
	}
	summary := a.Name + " is " + a.Status.String()
	if a.Activity != "" {
		summary += ": " + a.Activity
	}
	revision, err := r.append(tx, a, "agent.status", summary, map[string]any{
		"agent":    a.Name,
		"status":   a.Status.String(),
		"previous": before.Status.String(),
		"activity": a.Activity,
		"task_id":  a.TaskID,
		"progress": a.Progress,
	})
	if err != nil {
		return err
	}
	_, err = tx.Exec(updateReport, int64(a.Status), a.Activity, a.TaskID, a.Progress, tx.Now(), revision, a.ID)
	return err
}

// Deregister ends the registration of the calling agent, with all that hangs on it, and returns the
// revision of the change. fault.Precondition as Acting has it.
func (r *Registry) Deregister(ctx context.Context, who caller.Caller, req once.Request, reason string) (int64, error) {
	var revision int64
	err := r.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &revision, func() (err error) {
			revision, err = r.deregister(tx, who, reason)
			return err
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("deregister agent: %w", err)
	}
	return revision, nil
}

func (r *Registry) deregister(tx *store.Tx, who caller.Caller, reason string) (int64, error) {
	a, err := r.calling(tx, who)
	if err != nil {
		return 0, err
	}
	summary := a.Name + " deregistered"
	if reason != "" {
		summary += ": " + reason
	}
	revision, err := r.append(tx, a, "agent.deregistered", summary, map[string]any{
		"agent": a.Name, "incarnation": a.Incarnation, "reason": reason,
	})
	if err != nil {
		return 0, err
	}
	if _, err := tx.Exec(endRegistration, tx.Now(), revision, a.ID); err != nil {
		return 0, err
	}
	r.known.Clear(tx)
	for _, hook := range r.deregistered {
		if err := hook(tx, a, reason); err != nil {
			return 0, err
		}
	}
	tx.OnCommit(func() { r.presence.forget(who.Session, a.Name) })
	return revision, nil
}

// append adds an event that an agent itself has caused.
func (r *Registry) append(tx *store.Tx, a Agent, eventType, summary string, details map[string]any) (int64, error) {
	text, err := json.Marshal(details)
	if err != nil {
		return 0, err
	}
	return r.log.Append(tx, events.Entry{
		Session:    a.Session,
		Category:   events.Agent,
		Type:       eventType,
		Source:     a.Name,
		SourceRole: a.Role,
		Summary:    summary,
		Details:    string(text),
		Related:    []string{a.Name},
		TaskID:     a.TaskID,
	})
}

// jsonOrNull writes a list or map of strings, which can always be marshalled; NULL if it is empty.
func jsonOrNull(n int, v any) any {
	if n == 0 {
		return nil
	}
	text, _ := json.Marshal(v)
	return string(text)
}
