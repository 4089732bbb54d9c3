package diagnose

import (
	"fmt"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// The thresholds of a warning.
const (
	slowMail    = 15 * time.Minute // a message waits although an agent could take it
	longClaim   = 30 * time.Minute // an agent holds a claim
	lateClaim   = time.Minute      // an agent that is late holds a claim
	longBlocked = 10 * time.Minute // a message waits behind another of its ordering key
	nearlyFull  = 9                // tenths of the limit of a mailbox
)

// How much one answer reads.
const (
	mostDeliveries = 100 // of one message
	mostBoxes      = 200 // the fullest; an overview of many mailboxes also waits for them
	mostOrderings  = 100 // ordering keys of a mailbox, in each of the mostKeyed fullest
	mostKeyed      = 100
	mostOfAKind    = 20     // findings of one kind
	mostBefore     = 10_000 // messages before another, or with its ordering key
	mostRead       = 1000   // messages of a mailbox that were read
	mostQuestions  = 100    // to operators
	mostServers    = 10     // agents that one finding describes
	mostFreed      = 3      // agents for which one finding has commands
)

// A Crew knows the health of the agents of a session. Its methods are called inside transactions and snapshots.
type Crew interface {
	// Members returns the registered agents of a session, by name.
	Members(q store.Querier, session int64) ([]Member, error)
	// Registering returns the command that registers an agent again, as it described itself last.
	Registering(q store.Querier, session int64, agent string) (finding.Command, error)
	// Starting returns the command that starts the program of an agent again; nil if the broker
	// does not know it.
	Starting(q store.Querier, session int64, agent string) (finding.Command, error)
}

// Health is the broker's judgement of an agent by its calls. The circuit breaker is not part of it.
type Health int

// The states of health.
const (
	Alive   Health = iota
	Late           // a third of its lease has passed without a call
	Failed         // its lease has expired
	Stopped        // its program has ended well
)

// A Member is a registered agent with its health.
type Member struct {
	broker.Agent
	Health    Health
	LastSeen  time.Time
	FailedAt  time.Time // zero unless it has failed
	StoppedAt time.Time // zero unless it has stopped
}

// Sessions knows the settings of sessions.
type Sessions interface {
	// ByID returns the session with that row id; store.ErrNoRows if there is none.
	ByID(q store.Querier, session int64) (broker.Session, error)
}

// An Examiner explains why messages are stuck, and counts the messages in mailboxes. It changes nothing. Its
// methods may be called concurrently.
type Examiner struct {
	broker   *broker.Broker
	sessions Sessions
	crew     Crew
}

// New returns an examiner of the mailboxes of a broker.
func New(b *broker.Broker, sessions Sessions, crew Crew) *Examiner {
	return &Examiner{broker: b, sessions: sessions, crew: crew}
}

// Explain says why messages of the subject, or of the whole session, are stuck. It returns nothing
// about a subject that it does not know. Errors: fault.NotFound for a message or channel that does not
// exist, fault.Invalid for a text that is no id.
func (x *Examiner) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	e := x.explanation(q, about)
	var err error
	switch about.Kind {
	case finding.Message:
		err = e.message()
	case finding.Agent:
		err = e.ofAgent()
	case finding.Role:
		err = e.ofRole()
	case finding.Channel:
		err = e.ofChannel()
	case finding.Everything:
		err = e.everything()
	}
	if err != nil {
		return nil, fmt.Errorf("explain messages: %w", err)
	}
	return e.found, nil
}

// Condition describes an agent in a sentence, and reports whether it is well: neither failed, stopped nor
// late, and not kept from work.
func (x *Examiner) Condition(q store.Querier, about finding.Question, agent string) (says string, well bool, err error) {
	e := x.explanation(q, about)
	m, registered, err := e.member(agent)
	switch {
	case err != nil || !registered:
		return "", true, err
	case m.Health == Failed, m.Health == Stopped, !e.gates[agent].haltedAt.IsZero(), !e.gates[agent].until.IsZero():
		says, err = e.describe(&server{m, e.gates[agent]}, 0)
		return says, false, err
	case m.Health == Late:
		return agent + " is late: its last call was at " + about.When(m.LastSeen), false, nil
	}
	return "the last call of " + agent + " was at " + about.When(m.LastSeen), true, nil
}

// An explanation gathers the findings of one answer.
type explanation struct {
	*Examiner
	q     store.Querier
	about finding.Question
	found []finding.Finding

	heldUp int             // findings about ordering keys
	idle   int             // findings about agents that get no work
	more   int             // such agents beyond mostOfAKind
	blamed map[string]bool // such agents, with a finding that covers the messages that wait for them
	slow   map[int64]bool  // mailboxes with a finding that covers their messages

	known   bool     // the next fields were read
	members []Member // by name
	named   map[string]int
	roles   map[string][]int // places in members
	gates   map[string]gate  // by agent
}

func (x *Examiner) explanation(q store.Querier, about finding.Question) *explanation {
	return &explanation{Examiner: x, q: q, about: about,
		gates: map[string]gate{}, blamed: map[string]bool{}, slow: map[int64]bool{}}
}

func (e *explanation) add(f finding.Finding) { e.found = append(e.found, f) }

// mailboxOf names the mailbox of an agent.
func mailboxOf(agent string) broker.MailboxRef {
	return broker.MailboxRef{Kind: broker.AgentMailbox, Name: agent}
}
