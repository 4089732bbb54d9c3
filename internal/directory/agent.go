package directory

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
)

// An Agent is a registered agent. The one that has only the name identity.System stands for operators.
type Agent struct {
	ID           int64 // row id
	Session      int64 // row id
	Name         string
	Role         string
	Capabilities []string // sorted, each once
	Incarnation  int64    // it grows with each registration and failure
	Attention    Attention
	FailedAt     time.Time // when its lease expired; zero = it has not failed
	StoppedAt    time.Time // when it stopped; zero = it has not
}

// System reports whether an operator acts without an agent's name.
func (a Agent) System() bool { return a.Name == identity.System }

// Stopped reports whether the agent has stopped.
func (a Agent) Stopped() bool { return !a.StoppedAt.IsZero() }

// Ended reports whether the agent has failed or stopped.
func (a Agent) Ended() bool { return !a.FailedAt.IsZero() || !a.StoppedAt.IsZero() }

// Directs reports whether the agent may send directives in a session.
func (a Agent) Directs(s Session) bool {
	return a.System() || slices.Contains(s.Settings.GetDirectors().GetNames(), a.Role)
}

// A Gate has the reasons for which an agent receives no work.
type Gate struct {
	Halted   bool // between a halt and a resume: only directives are delivered to it
	Degraded bool // its circuit breaker is open
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
	Agent
	Health   Health
	LastSeen time.Time
}

// A Pulse counts the registered agents of a session, and the messages that they have sent, received and acknowledged.
type Pulse struct {
	Agents                    int
	Late                      int // of these, silent for a third of their lease
	Failed                    int // of these, with a lease that has expired
	Stopped                   int // of these
	Sent, Received, Processed int64
}

// An Attention says which mail reaches the agent's model unasked. The numbers are those of the API.
type Attention int

// What may reach it.
const (
	AttentionOpen       Attention = 1 + iota // all
	AttentionDirectives                      // directives, answers to its questions and notices
	AttentionOff                             // nothing
)

// String returns the name of the mode, as events spell it.
func (a Attention) String() string { return [...]string{"open", "open", "directives", "off"}[a] }

// A LossKind says what was lost. The numbers are those of the API and of the table.
type LossKind int

// What an agent can lose with its lease.
const (
	LostClaim LossKind = 1 + iota
	LostLock
	LostToken
	LostTicket // a place in the queue for a lock or token
	LostTask
)

// A Loss is something that an agent held when its lease ended.
type Loss struct {
	Kind     LossKind
	Name     string // the claim id, the paths separated by a space, TYPE/SCOPE or the task's id; clipped if it is long
	Revision int64  // of the fence, the ticket, or the claimed message
	At       time.Time
}

// A Selection selects registered agents of a session. What is empty does not restrict.
type Selection struct {
	Role    string
	Pattern string // of names; only * and ? are special
	After   string // the names behind this one
	Most    int    // the first ones alone; 0 = all
}

type agentKey struct {
	session int64
	name    string
}

const selectAgent = `
SELECT id, role, incarnation, registered, failed_at, stopped_at, capabilities, attention
FROM agents
WHERE session = ? AND name = ?`

const selectCompleted = `
SELECT status = 6 /* completed */ FROM agents WHERE session = ? AND name = ? AND registered = 1`

const selectMatching = `
SELECT id, name, role, incarnation, failed_at, stopped_at
FROM agents
WHERE session = ? AND registered = 1 AND name BETWEEN ? AND ?
ORDER BY name`

const selectMatchingOfRole = `
SELECT id, name, role, incarnation, failed_at, stopped_at
FROM agents
WHERE session = ? AND role = ? AND registered = 1 AND name BETWEEN ? AND ?
ORDER BY name`

const selectAgentNames = `
SELECT name FROM agents WHERE session = ? AND registered = 1 ORDER BY name LIMIT ?`

// Acting returns the registered agent that calls. An operator without an agent, and an observer that reads,
// act as the zero Agent with the name "system". In a transaction, Acting has an agent brought back that has
// failed or stopped.
//
// Errors: fault.Precondition (AGENT_NOT_REGISTERED) if there is no such agent; as Admit has them;
// fault.Denied (AGENT_REQUIRED) for others without an agent.
func (d *Directory) Acting(q store.Querier, session int64, c identity.Caller) (Agent, error) {
	tx, changing := q.(*store.Tx)
	if c.Agent == "" {
		if c.Access == identity.Operator || c.Access == identity.Observer && !changing {
			return Agent{Name: identity.System}, nil
		}
		return Agent{}, fault.New(fault.Denied, "AGENT_REQUIRED", "only an operator may call without an agent's name")
	}
	a, registered, err := d.Find(q, session, c.Agent)
	if err != nil {
		return Agent{}, err
	}
	if !registered {
		return Agent{}, ErrNotRegistered(c)
	}
	if err := d.Admit(q, session, c, a.Incarnation); err != nil {
		return Agent{}, err
	}
	if changing && a.Ended() {
		return d.revive(tx, c, a)
	}
	return a, nil
}

// Admit refuses a caller that is not the newest incarnation of its agent, or has lost what its call depends
// on. Errors: fault.Precondition (STALE_INCARNATION), fault.Precondition (FENCE_LOST).
func (d *Directory) Admit(q store.Querier, session int64, c identity.Caller, newest int64) error {
	if c.Incarnation != 0 && c.Incarnation != newest {
		return fault.New(fault.Precondition, "STALE_INCARNATION",
			"the agent %q has registered again: incarnation %d calls, and %d is the newest", c.Agent, c.Incarnation, newest).
			With("incarnation", strconv.FormatInt(newest, 10))
	}
	if c.Fence == 0 {
		return nil
	}
	for _, f := range d.fences {
		if held, err := f.Holds(q, session, c.Agent, c.Fence); err != nil || held {
			return err
		}
	}
	return fault.New(fault.Precondition, "FENCE_LOST",
		"the agent %q no longer holds the lock, token or task with fence %d, on which this call depends: nothing was done; "+
			"acquire it again first", c.Agent, c.Fence).
		With("fence", strconv.FormatInt(c.Fence, 10))
}

// ErrNotRegistered is the error for a call by an agent that is not registered: fault.Precondition,
// AGENT_NOT_REGISTERED.
func ErrNotRegistered(c identity.Caller) error {
	e := fault.New(fault.Precondition, "AGENT_NOT_REGISTERED",
		"the agent %q, which makes this call, is not registered in session %q: register it first", c.Agent, c.Session)
	e.Resource, e.Name = "agent", c.Agent
	return e
}

// Find returns a registered agent.
func (d *Directory) Find(q store.Querier, session int64, name string) (Agent, bool, error) {
	key := agentKey{session, name}
	var a Agent
	var err error
	if tx, changing := q.(*store.Tx); changing {
		a, err = d.agents.Get(tx, key, func() (Agent, error) { return readAgent(tx, key) })
	} else {
		a, err = readAgent(q, key)
	}
	if err != nil || a.ID == 0 {
		return Agent{}, false, err
	}
	return a, true, nil
}

// readAgent returns an agent without ID if none is registered.
func readAgent(q store.Querier, k agentKey) (Agent, error) {
	a := Agent{Session: k.session, Name: k.name}
	var registered bool
	var capabilities []byte
	var attention int
	err := q.QueryRow(selectAgent, k.session, k.name).
		Scan(&a.ID, &a.Role, &a.Incarnation, &registered, &a.FailedAt, &a.StoppedAt, &capabilities, &attention)
	a.Attention = Attention(attention)
	if errors.Is(err, store.ErrNoRows) {
		return a, nil
	}
	if err == nil && len(capabilities) > 0 {
		err = json.Unmarshal(capabilities, &a.Capabilities)
	}
	if err != nil {
		return Agent{}, fmt.Errorf("look up agent: %w", err)
	}
	if !registered {
		a.ID = 0
	}
	return a, nil
}

// Completed reports whether an agent is registered, and whether it has reported the status completed.
func (d *Directory) Completed(q store.Querier, session int64, name string) (completed, registered bool, err error) {
	err = q.QueryRow(selectCompleted, session, name).Scan(&completed)
	if errors.Is(err, store.ErrNoRows) {
		return false, false, nil
	}
	return completed, err == nil, err
}

// Matching returns the registered agents of a selection, by name, without capabilities and attention.
func (d *Directory) Matching(q store.Querier, session int64, which Selection) ([]Agent, error) {
	var rows *store.Rows
	low, high := between(which.Pattern)
	if low = max(low, which.After); which.Role == "" {
		rows = q.Query(selectMatching, session, low, high)
	} else {
		rows = q.Query(selectMatchingOfRole, session, which.Role, low, high)
	}
	defer rows.Close()
	var found []Agent
	for (which.Most == 0 || len(found) < which.Most) && rows.Next() {
		a := Agent{Session: session}
		if err := rows.Scan(&a.ID, &a.Name, &a.Role, &a.Incarnation, &a.FailedAt, &a.StoppedAt); err != nil {
			return nil, err
		}
		if a.Name != which.After && Matches(which.Pattern, a.Name) {
			found = append(found, a)
		}
	}
	return found, rows.Err()
}

// Nearest returns the registered names that take the fewest edits to become the given one, at most
// three, nearest first.
func (d *Directory) Nearest(q store.Querier, session int64, name string) ([]string, error) {
	names, err := readNames(q.Query(selectAgentNames, session, nearest.Limit))
	return nearest.Names(name, names), err
}
