package decisions

import (
	"slices"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// idLetter begins the ids of decisions, such as d-4711.
const idLetter = "d"

// onlyReviewsPass is the error for a token that another decision is to pass.
const onlyReviewsPass = "is set; only a review with a scope passes a token"

// TokenType is the type of the tokens that reviews pass.
const TokenType = "producer_critic"

// The verdicts with a special meaning.
const (
	Revise = "revise" // asks for another round
	Defer  = "defer"  // names a time
)

// A Kind says what is decided. The numbers are those of the API and of the table.
type Kind int

// The kinds.
const (
	Review Kind = 1 + iota
	Plan
	Shutdown
	Custom
)

// String returns the name of the kind.
func (k Kind) String() string {
	return [...]string{"unspecified", "review", "plan", "shutdown", "custom"}[k]
}

// verdicts returns the verdicts of a kind; none for Custom.
func (k Kind) verdicts() []string {
	return [...][]string{
		Review:   {"approve", Revise, "reject"},
		Plan:     {"approve", Revise, "reject"},
		Shutdown: {"accept", Defer, "reject"},
		Custom:   nil,
	}[k]
}

// A State is the state of a decision. The numbers are those of the API and of the table. Those of
// unfinished decisions come first.
type State int

// The states.
const (
	Open State = 1 + iota
	Revising
	Escalated
	Decided
	Cancelled
)

// String returns the name of the state.
func (s State) String() string {
	return [...]string{"unspecified", "open", "revising", "escalated", "decided", "cancelled"}[s]
}

// waits reports whether a verdict is due.
func (s State) waits() bool { return s == Open || s == Escalated }

// A File is a place in a file.
type File struct {
	Path string `json:"path"`
	Line int    `json:"line,omitempty"`
}

// Content is what is submitted.
type Content struct {
	Body      string
	Payload   string // JSON
	Files     []File
	Artifacts []string
}

// A Feedback is one piece of a verdict's feedback.
type Feedback struct {
	Severity Severity `json:"severity"`
	File     string   `json:"file,omitempty"`
	Line     int      `json:"line,omitempty"`
	Text     string   `json:"text"`
}

// A Severity says how much a piece of feedback matters. The numbers are those of the API.
type Severity int

// The severities.
const (
	Note Severity = 1 + iota
	Minor
	Major
	Blocker
)

// String returns the name of the severity.
func (s Severity) String() string {
	return [...]string{"unspecified", "note", "minor", "major", "blocker"}[s]
}

// MarshalText writes the name.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *Severity) UnmarshalText(text []byte) error {
	for *s = Note; *s < Blocker && s.String() != string(text); *s++ {
	}
	return nil
}

// A Verdict is the verdict of one round.
type Verdict struct {
	Round     int
	Verdict   string
	By        string // an agent, or system
	At        time.Time
	Reason    string
	Feedback  []Feedback `json:"-"`
	Until     time.Time  // of Defer
	Escalated bool       // given after an escalation
	Revision  int64
}

// A Decision is one decision.
type Decision struct {
	ID          int64 // the revision that opened it
	Session     int64 // row id
	Kind        Kind
	State       State
	OpenedBy    string // an agent, or system
	Agent       string // the addressee: an agent, or
	Role        string // a role
	EscalatedTo string // the role that the escalation was sent to; empty = none
	Title       string
	Scope       string
	Task        string
	Thread      string
	Content     Content `json:"-"`
	Verdicts    []string
	Round       int // from 1
	MaxRounds   int
	Deadline    time.Time // zero = none
	PassToken   bool
	Fence       int64     `json:"-"` // of the token's last pass; 0 = none
	Verdict     string    // the final one
	Rounds      []Verdict // all of them, or the newest
	Note        string    // why it escalated or was cancelled
	OpenedAt    time.Time
	ChangedAt   time.Time
	Revision    int64
	MessageType string
	OutcomeType string
}

// Name returns the id of the decision, such as d-4711.
func (d *Decision) Name() string { return work.ID(idLetter, d.ID) }

// String names the decision in a sentence.
func (d *Decision) String() string {
	if d.Scope != "" {
		return d.Kind.String() + " " + finding.Clip(d.Scope)
	}
	return d.Kind.String() + " " + d.Name()
}

// addressee names the agent or role that decides.
func (d *Decision) addressee() string {
	if d.Agent != "" {
		return d.Agent
	}
	return "role:" + d.Role
}

// last returns the newest verdict, nil if there is none.
func (d *Decision) last() *Verdict {
	if len(d.Rounds) == 0 {
		return nil
	}
	return &d.Rounds[len(d.Rounds)-1]
}

// mayDecide reports whether an agent may give the verdict that is due.
func (d *Decision) mayDecide(a directory.Agent, s directory.Session) bool {
	if d.State == Escalated && a.System() {
		return true
	}
	if !d.State.waits() || a.Name == d.OpenedBy {
		return false
	}
	if d.State == Escalated && len(s.EscalateTo) > 0 {
		return slices.Contains(s.EscalateTo, a.Role)
	}
	return a.Name == d.Agent || d.Role != "" && a.Role == d.Role
}

// mayPass reports whether the decision is one that may pass a token.
func (d *Decision) mayPass() bool { return d.Kind == Review && d.Scope != "" }

// owedBy reports whether the decision waits for an agent.
func (d *Decision) owedBy(a directory.Agent, s directory.Session) bool {
	return d.mayDecide(a, s) || d.State == Revising && d.OpenedBy == a.Name
}

// A TokenPass passes the token of a review on.
type TokenPass struct {
	Scope string
	Fence int64  // of the grant to pass; or
	From  string // the agent that holds the token
	Agent string // that receives it; or
	Role  string // ; with neither, the token is released
	Note  string
}

// Tokens passes the tokens of reviews.
type Tokens interface {
	// Pass passes a token on in the transaction of a change. It reports whether it has passed it: false
	// if neither the grant exists nor the agent holds the token. fence is that of the new grant, 0 if
	// the receiver has none.
	Pass(tx *store.Tx, session int64, p TokenPass) (fence int64, passed bool, err error)
}

// A Crew knows the health of agents.
type Crew interface {
	// Condition describes an agent in a sentence, and reports whether it is well.
	Condition(q store.Querier, about finding.Question, agent string) (says string, well bool, err error)
}

// Parts are what a Table needs. All are required.
type Parts struct {
	Store     *store.Store
	Log       *events.Log
	Directory *directory.Directory
	Post      work.Post
	Tokens    Tokens
	Crew      Crew
	Clock     clockwork.Clock
	Zap       *zap.Logger
}

// A Table is the table of decisions. Its methods may be called concurrently.
type Table struct {
	Parts
	hub      *work.Hub[int64]
	observer work.Observer // nil = outcomes are not counted
	calendar *work.Calendar
	backlog  *work.Backlog
}

// New returns the table of a store that was opened with Migrations. It escalates nothing before Start.
func New(p Parts) *Table {
	t := &Table{Parts: p, hub: work.NewHub[int64](p.Clock)}
	t.calendar = work.NewItemCalendar(p.Store, p.Clock, p.Zap, deadlines, t.due)
	t.backlog = work.NewBacklog(p.Store, "decisions", p.Clock, p.Zap, t.page)
	return t
}

// Observe sets the counter of outcomes. Call it before the table is used.
func (t *Table) Observe(o work.Observer) { t.observer = o }

// Start begins to escalate decisions at their deadlines, and resumes the backlog.
func (t *Table) Start() {
	t.calendar.Start()
	t.backlog.Start()
}

// Stop ends what Start has begun. It may be called more than once, and without Start.
func (t *Table) Stop() {
	t.calendar.Stop()
	t.backlog.Stop()
}

// Drain ends the calls that wait; they return the decision as it is.
func (t *Table) Drain() { t.hub.Drain() }
