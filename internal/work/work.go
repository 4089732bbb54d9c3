package work

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Post sends messages in the transaction of a change.
type Post interface {
	// Admit waits until the caller may send so many messages, as its rate permits. A feature calls it before the
	// transaction of a call that sends messages. Errors: fault.Exhausted.
	Admit(ctx context.Context, c identity.Caller, messages int) error
	// Post sends a message and returns its revision. Errors: fault.NotFound if no agent matches the
	// target; fault.Denied if the sender may not send the directive.
	Post(tx *store.Tx, session int64, l Letter) (revision int64, err error)
	// Notify sends a notice. It sends nothing, without an error, if no agent matches or the session
	// is closed.
	Notify(tx *store.Tx, session int64, n Notice) error
	// Withdraw ends the deliveries of messages that have become moot: it withdraws unread notices
	// and unclaimed messages, and acknowledges messages that an agent has claimed.
	Withdraw(tx *store.Tx, session int64, m Moot) error
	// WithdrawSome is Withdraw for up to limit deliveries. It reports whether there may be more.
	WithdrawSome(tx *store.Tx, session int64, m Moot, limit int) (more bool, err error)
}

// Moot selects messages that have become moot.
type Moot struct {
	About int64  // as in the Letter or Notice
	Type  string // empty = of any type
	Agent string // whose delivery; empty = all
}

// A Letter is a message that a feature sends in the name of an agent, or of the broker. Its
// recipient must act on it. Full mailboxes take it.
type Letter struct {
	From          directory.Agent // the zero Agent and an operator send as system
	To            []string        // agents; or
	Role          string          // one agent of this role
	Type          string
	Subject, Body string // the broker clips the subject to one line
	Payload       string // JSON; empty = none
	Task          string
	Thread        string // empty = the message starts a thread
	InReplyTo     int64  // revision of a message; 0 = none
	Priority      int    // 1 to 10; 0 = 5
	Artifacts     []string
	About         int64 // for Withdraw: the revision of the work that the message is about; 0 = none
}

// A Notice informs agents. It is no work: no claim delivers it.
type Notice struct {
	Agent   string // or
	Role    string
	Type    string
	Subject string // the broker clips it to one line
	Payload string // JSON; empty = none
	Task    string
	About   int64 // as in a Letter
}

// An UnreadNotice is a notice as an agent reads it.
type UnreadNotice struct {
	Revision  int64
	Type      string
	Subject   string
	Payload   string // JSON; empty = none
	CreatedAt time.Time
}

// An Item is a piece of unfinished work that concerns an agent.
type Item struct {
	Kind     string // task, decision, blocker, handoff, vote
	ID       string
	Revision int64 // of its last change
	Title    string
	State    string       // in lower case, as brokerctl shows it
	Relation Relation     // what the agent has to do with it
	Other    string       // the agent or role on the other side; empty = none
	Due      time.Time    // zero = none
	Calls    []calls.Call // that the agent may make; the one that settles it first
}

// A Relation is what an agent has to do with a piece of work. The numbers are those of the API.
type Relation int

// The relations.
const (
	Holds  Relation = iota + 1 // the agent works on it
	Owes                       // others wait for the agent's answer
	Opened                     // the agent waits for the answer of others
)

// Count is how many pieces of work of one kind are in a state. It counts up to MostCounted.
type Count struct {
	Kind, State string
	N           int64
}

// MostCounted is up to how many a Count counts.
const MostCounted = 1000

// A Done is a piece of finished work that can be archived and removed.
type Done struct {
	Key      int64     // of its row
	At       time.Time // when it finished
	Line     []byte    // the work as a JSON object, as an export has it
	Revision int64     // of its last change, for work that can change after it has finished
}

// An Observer counts outcomes, for metrics.
type Observer interface {
	// Work counts an outcome of one kind of work, such as task, done. It is called after the commit
	// and must be quick.
	Work(kind, outcome string)
}

// ID returns the id of a piece of work: the letter of its kind, and the revision that created it.
func ID(letter string, revision int64) string {
	return letter + "-" + strconv.FormatInt(revision, 10)
}

// ParseID returns the revision in an id that ID made. The revision alone is accepted too. The error
// is fault.NotFound: a text that is no id names nothing that exists.
func ParseID(noun, letter, id string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimPrefix(id, letter+"-"), 10, 64)
	if err != nil || n <= 0 {
		return 0, Missing(noun, id)
	}
	return n, nil
}

// Missing is the error for a piece of work that does not exist.
func Missing(noun, id string) error {
	return fault.Missing(noun, id, "there is no %s %q in this session", noun, id)
}

// UnknownAgent is the error for an agent that is not registered, with the nearest names.
func UnknownAgent(q store.Querier, d *directory.Directory, session int64, name string) error {
	near, err := d.Nearest(q, session, name)
	if err != nil {
		return fmt.Errorf("find near names: %w", err)
	}
	text := fmt.Sprintf("no agent %q is registered in this session", name)
	if len(near) > 0 {
		text += "; the nearest names are " + strings.Join(near, ", ")
	}
	return fault.Missing("agent", name, "%s", text)
}
