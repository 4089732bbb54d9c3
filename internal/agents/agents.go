package agents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/deadline"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// A Status is the state that an agent reports of itself. The numbers are those of the API and of
// the table.
type Status int

// The statuses. In the table, Unreported is the status of an agent that has reported none since it
// registered.
const (
	Unreported Status = iota
	Initializing
	Active
	Idle
	Waiting
	Blocked
	Completed
	Terminated
	StatusDegraded
	StatusFailed
	Stopped // the program has ended well
)

// String returns the name of the status as events spell it.
func (s Status) String() string {
	names := [...]string{"unreported", "initializing", "active", "idle", "waiting", "blocked", "completed", "terminated",
		"degraded", "failed", "stopped"}
	if s < 0 || int(s) >= len(names) {
		return names[0]
	}
	return names[s]
}

// A Description is what an agent says of itself when it registers.
type Description struct {
	DisplayName  string // for people
	Purpose      string // what the agent is for: "description" in the API
	Role         string
	Capabilities []string // sorted, each once
	Instance     string
	Worktree     string
	Labels       map[string]string
	Lease        time.Duration // how long the broker considers the agent alive after its last call
}

// A Report is what an agent last said of what it does.
type Report struct {
	Status   Status
	Reason   string // why it has the status
	Activity string
	TaskID   string
	Progress float64 // 0 to 1
	Counters
	LastTool string
	LastFile string
}

// A Health is how the broker judges an agent. The numbers are those of the API.
type Health int

// The states of health. If several apply, the last one counts.
const (
	OK       Health = 1 + iota // its last call is at most a third of its lease ago, or is open, or it has stopped
	Late                       // its last call is longer ago
	Degraded                   // its circuit breaker is open, or it reports StatusDegraded
	Failed                     // its lease has expired, or it reports StatusFailed
)

// An Agent is a registered participant.
type Agent struct {
	ID      int64
	Session int64 // row id
	Name    string
	Description
	Report
	Harness      Harness             // as reported; see Presence
	Attention    directory.Attention // never 0
	Incarnation  int64               // it grows with each registration and failure
	RegisteredAt time.Time
	ChangedAt    time.Time
	FailedAt     time.Time // when its lease expired; zero = it has not failed
	StoppedAt    time.Time // when it stopped; zero = it has not
	CompletedAt  time.Time // since when its status is Completed; zero = it is not
	Revision     int64     // of its last change
	Messages               // as of the last write unless Get, List or Register returned them
	LastSeen     time.Time // its last call; as of the last write unless Get, List or Register returned it
	AsleepSince  time.Time // zero = it is not asleep; filled by Get, List and Register, as are Health and Gate
	Health       Health
	directory.Gate
}

// EndedAt returns when the agent failed or stopped; zero = neither, so the broker considers it alive.
func (a *Agent) EndedAt() time.Time {
	if a.StoppedAt.IsZero() {
		return a.FailedAt
	}
	return a.StoppedAt
}

// Stopped reports whether the agent has stopped.
func (a *Agent) Stopped() bool { return !a.StoppedAt.IsZero() }

// Ended reports whether the agent has failed or stopped. Its next call brings it back.
func (a *Agent) Ended() bool { return !a.EndedAt().IsZero() }

// Entry returns what the directory knows of the agent.
func (a *Agent) Entry() directory.Agent {
	return directory.Agent{
		ID: a.ID, Session: a.Session, Name: a.Name, Role: a.Role, Capabilities: a.Capabilities,
		Incarnation: a.Incarnation, Attention: a.Attention, FailedAt: a.FailedAt, StoppedAt: a.StoppedAt,
	}
}

// Mail knows the waiting mail of an agent, and its gate.
type Mail interface {
	// Counts returns the unfinished deliveries in the agent's own mailbox that it has not read, and
	// those that it could claim now, from its own mailbox, its role's and its channels'.
	Counts(q store.Querier, session int64, a directory.Agent) (unread, claimable int64, err error)
	// Directives returns the types of the agent's unfinished directives, oldest first, at most 100.
	Directives(q store.Querier, session int64, agent string) ([]string, error)
	// Claimants returns the names of the agents of a session that hold a claim. A name restricts it
	// to that agent.
	Claimants(q store.Querier, session int64, name string) (map[string]bool, error)
	// Gated returns the agents of a session that have a gate, by name.
	Gated(q store.Querier, session int64) (map[string]directory.Gate, error)
}

// Notices knows the notices that the broker sends to agents.
type Notices interface {
	// HasNotices reports whether the agent has unread notices.
	HasNotices(q store.Querier, session int64, agent string) (bool, error)
	// ReadNotices returns the oldest unread notices, at most 100, and marks them read.
	ReadNotices(tx *store.Tx, session int64, a directory.Agent) ([]work.UnreadNotice, error)
}

// A Registry keeps the agents. It may be used concurrently; hooks and mail are plugged in before it is.
type Registry struct {
	Hooks    Hooks
	Presence *Presence

	store   *store.Store
	log     *events.Log
	dir     *directory.Directory
	clock   clockwork.Clock
	zap     *zap.Logger
	mail    Mail
	notices Notices // nil = there are none
	holders []Holder
}

// New returns the registry of a store that was opened with Migrations, and has the directory bring agents back
// with it. No lease ends until Presence.Start.
func New(
	s *store.Store, log *events.Log, dir *directory.Directory, clock clockwork.Clock, logger *zap.Logger,
) *Registry {
	p := &Presence{store: s, dir: dir, clock: clock, zap: logger, lives: map[agentKey]*life{}}
	r := &Registry{Presence: p, store: s, log: log, dir: dir, clock: clock, zap: logger}
	dir.UseReviver(r.reviveCalling)
	p.revive = func(ctx context.Context, who identity.Caller) {
		_ = s.Write(ctx, func(tx *store.Tx) error {
			_, err := r.calling(tx, who)
			return err
		})
	}
	p.leases = deadline.New(clock, r.leasesOver)
	p.gone = deadline.NewCalendar(clock, r.goneOver)
	p.writes = deadline.New(clock, p.writeActivity)
	return r
}

// UseMail plugs in the mail.
func (r *Registry) UseMail(m Mail) { r.mail = m }

// UseNotices plugs in the notices that heartbeats return.
func (r *Registry) UseNotices(n Notices) { r.notices = n }

// Register registers the calling agent, or registers it again: then its incarnation grows, and it takes over all
// that it holds. Fields that are empty in d stay, unless replace is set (see Description.keep). It returns the losses
// of the agent's failure that it has not reported yet. Errors: fault.NotFound if the session does not exist,
// fault.Exhausted (TOO_MANY_AGENTS) for a new agent beyond maxAgents, fault.Invalid if the labels that stay and
// the new ones are too many.
func (r *Registry) Register(ctx context.Context, who identity.Caller, req idempotency.Request, d Description, replace bool,
	of Harnessed,
) (Agent, Lost, error) {
	var answer struct {
		Agent Agent
		Lost
	}
	for _, await := range r.Hooks.departures {
		if err := await(ctx, who.Session, who.Agent); err != nil {
			return Agent{}, Lost{}, fmt.Errorf("register agent: %w", err)
		}
	}
	var seen bool
	err := r.store.Write(ctx, func(tx *store.Tx) (err error) {
		seen, err = req.Do(tx, &answer, func() (err error) {
			if answer.Agent, err = r.register(tx, who, d, replace, of); err != nil {
				return err
			}
			answer.Lost, err = tellLosses(tx, answer.Agent.ID)
			return err
		})
		return err
	})
	if err != nil {
		return Agent{}, Lost{}, fmt.Errorf("register agent: %w", err)
	}
	if !seen {
		a := &answer.Agent
		r.zap.Info("an agent has registered", zap.String("agent", a.Name), zap.String("session", who.Session),
			zap.String("role", a.Role), zap.Int64("incarnation", a.Incarnation))
	}
	return answer.Agent, answer.Lost, nil
}

// keep fills what is empty from the description of an earlier registration, except the lease, and adds its labels.
func (d *Description) keep(of Description) error {
	d.DisplayName = cmp.Or(d.DisplayName, of.DisplayName)
	d.Purpose = cmp.Or(d.Purpose, of.Purpose)
	d.Role = cmp.Or(d.Role, of.Role)
	d.Instance = cmp.Or(d.Instance, of.Instance)
	d.Worktree = cmp.Or(d.Worktree, of.Worktree)
	if len(d.Capabilities) == 0 {
		d.Capabilities = of.Capabilities
	}
	labels := maps.Clone(of.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, d.Labels)
	if len(labels) > validate.MaxLabels {
		return fault.Field("labels", "are %d together with those that the registration has, and %d are allowed; "+
			"with replace, only those of the request count", len(labels), validate.MaxLabels)
	}
	d.Labels = labels
	return nil
}

func (r *Registry) register(tx *store.Tx, who identity.Caller, d Description, replace bool, of Harnessed) (Agent, error) {
	session, err := r.dir.SessionID(tx, who.Session)
	if err != nil {
		return Agent{}, err
	}
	known, found, err := find(tx, session, who.Agent)
	if found && !replace {
		err = d.keep(known.Description)
	}
	if err != nil {
		return Agent{}, err
	}
	a := Agent{Session: session, Name: who.Agent, Description: d,
		RegisteredAt: tx.Now(), ChangedAt: tx.Now(), LastSeen: tx.Now(), Health: OK, Attention: cmp.Or(of.Attention, directory.AttentionOpen)}
	if found && !replace {
		a.Attention = cmp.Or(of.Attention, known.Attention)
	}
	stays := of.Session != "" && known.Harness.Session == of.Session
	if stays {
		a.Harness = known.Harness
	}
	var before bool
	err = tx.QueryRow(selectIncarnation, session, a.Name).Scan(&a.ID, &a.Incarnation, &before)
	if errors.Is(err, store.ErrNoRows) {
		a.Incarnation, err = floor(tx, session)
	}
	if err == nil && !before {
		err = checkLimit(tx, session, who.Session)
	}
	if err != nil {
		return Agent{}, err
	}
	a.Incarnation++
	a.Revision, err = r.append(tx, a, a.Name, events.Info, "agent.registered", fmt.Sprintf("%s registered, incarnation %d", a.Name, a.Incarnation), map[string]any{
		"agent":         a.Name,
		"role":          a.Role,
		"capabilities":  a.Capabilities,
		"incarnation":   a.Incarnation,
		"lease_seconds": d.Lease.Seconds(),
	})
	if err != nil {
		return Agent{}, err
	}
	err = tx.QueryRow(upsertAgent, a.Session, a.Name, a.Role, a.Incarnation, jsonOrNull(len(d.Capabilities), d.Capabilities),
		d.Instance, d.Worktree, jsonOrNull(len(d.Labels), d.Labels), d.Lease, d.DisplayName, d.Purpose,
		a.RegisteredAt, a.ChangedAt, a.LastSeen, a.Revision, int64(a.Attention)).Scan(&a.ID, &a.Sent, &a.Received, &a.Processed)
	if err != nil {
		return Agent{}, err
	}
	if !stays {
		tx.Exec(clearHarness, a.ID)
	}
	r.dir.AgentsChanged(tx)
	for _, hook := range r.Hooks.registered {
		if err := hook(tx, a.Entry()); err != nil {
			return Agent{}, err
		}
	}
	gated, err := r.mail.Gated(tx, a.Session)
	if err != nil {
		return Agent{}, err
	}
	if a.Gate = gated[a.Name]; a.Degraded {
		a.Health = Degraded
	}
	tx.OnCommit(func() { r.Presence.alive(who.Session, a, r.clock.Now().Add(a.Lease)) })
	r.Presence.count(who.Session, &a)
	a.Status = Initializing // as derived
	return a, nil
}

// maxAgents is how many agents of a session may be registered. It bounds what a message to all of
// them reads.
const maxAgents = 10_000

// checkLimit returns fault.Exhausted if the session has the most registered agents that it may have.
func checkLimit(tx *store.Tx, session int64, name string) error {
	var n int
	if err := tx.QueryRow(countRegistered, session).Scan(&n); err != nil || n < maxAgents {
		return err
	}
	return fault.New(fault.Exhausted, "TOO_MANY_AGENTS",
		"session %q has %d registered agents, and can have %d: deregister those that have ended", name, n, maxAgents).
		With("limit", strconv.Itoa(maxAgents))
}

// Deregister ends the registration of the calling agent, with all that depends on it, and returns the
// revision of the change. Errors: fault.Precondition as from directory.Directory.Acting.
func (r *Registry) Deregister(ctx context.Context, who identity.Caller, req idempotency.Request, reason string) (int64, error) {
	var revision int64
	var seen bool
	err := r.store.Write(ctx, func(tx *store.Tx) (err error) {
		seen, err = req.Do(tx, &revision, func() (err error) {
			revision, err = r.deregister(tx, who, reason)
			return err
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("deregister agent: %w", err)
	}
	if !seen {
		r.zap.Info("an agent has deregistered", zap.String("agent", who.Agent), zap.String("session", who.Session),
			zap.String("reason", reason))
	}
	return revision, nil
}

func (r *Registry) deregister(tx *store.Tx, who identity.Caller, reason string) (int64, error) {
	a, err := r.calling(tx, who)
	if err != nil {
		return 0, err
	}
	return r.end(tx, who.Session, a, a.Name, reason)
}

// end ends a registration in the name of source.
func (r *Registry) end(tx *store.Tx, session string, a Agent, source, reason string) (int64, error) {
	summary := a.Name + " deregistered"
	if source != a.Name {
		summary = a.Name + " was deregistered"
	}
	if reason != "" {
		summary += ": " + reason
	}
	revision, err := r.append(tx, a, source, events.Info, "agent.deregistered", summary, map[string]any{
		"agent": a.Name, "incarnation": a.Incarnation, "reason": reason,
	})
	if err != nil {
		return 0, err
	}
	tx.Exec(endRegistration, tx.Now(), revision, a.ID)
	tx.Exec(deleteLosses, a.ID)
	events.EndCursors(tx, a.Session, a.Name)
	r.dir.AgentsChanged(tx)
	for _, hook := range r.Hooks.deregistered {
		if err := hook(tx, a.Entry(), reason); err != nil {
			return 0, err
		}
	}
	tx.OnCommit(func() { r.Presence.forget(session, a.Name) })
	return revision, nil
}

// append adds an event about an agent, which the agent itself or the broker has caused.
func (r *Registry) append(tx *store.Tx, a Agent, source string, severity events.Severity, eventType, summary string,
	details map[string]any) (int64, error) {
	text, err := json.Marshal(details)
	if err != nil {
		return 0, err
	}
	entry := events.Entry{
		Session:  a.Session,
		Category: events.Agent,
		Type:     eventType,
		Severity: severity,
		Source:   source,
		Summary:  summary,
		Details:  string(text),
		Related:  []string{a.Name},
		TaskID:   a.TaskID,
	}
	if source == a.Name {
		entry.SourceRole = a.Role
	}
	return r.log.Append(tx, entry)
}

// jsonOrNull writes a list or map of strings, which can always be marshalled; NULL if it is empty.
func jsonOrNull(n int, v any) any {
	if n == 0 {
		return nil
	}
	text, _ := json.Marshal(v)
	return string(text)
}
