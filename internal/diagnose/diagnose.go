package diagnose

import (
	"fmt"
	"strconv"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/broker"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
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
	mostDeliveries  = 100 // of one message
	mostBoxes       = 200 // the fullest; an overview of many mailboxes also waits for them
	mostOrderings   = 100 // ordering keys of a mailbox, in each of the mostKeyed fullest
	mostKeyed       = 100
	mostOfAKind     = 20     // findings of one kind
	mostBefore      = 10_000 // messages before another, or with its ordering key
	mostRead        = 1000   // messages of a mailbox that were read
	mostOfChannel   = 10_000 // the newest messages of the broker, and deliveries of a channel
	mostSubscribers = 1000   // agents that subscribe to a channel of events
	mostLetters     = 1000   // dead letters of a mailbox
	mostQuestions   = 100    // to operators
	mostDescribed   = 10     // agents that one finding describes
	mostFreed       = 3      // agents for which one finding has calls
)

// A Crew knows the health of the agents of a session. Its methods are called inside transactions and snapshots.
type Crew interface {
	// Members returns the registered agents of a session, by name.
	Members(q store.Querier, session int64) ([]directory.Member, error)
	// Registering returns the call that registers an agent again, as it described itself last.
	Registering(q store.Querier, session int64, agent string) (calls.Call, error)
	// Starting returns the call that registers an agent again, with the program that makes it; false if the broker does
	// not know the program.
	Starting(q store.Querier, session int64, agent string) (calls.Call, bool, error)
}

// An Examiner explains why messages are stuck, and counts the messages in mailboxes. It changes nothing. Its
// methods may be called concurrently.
type Examiner struct {
	broker *broker.Broker
	dir    *directory.Directory
	crew   Crew
}

// New returns an examiner of the mailboxes of a broker.
func New(b *broker.Broker, dir *directory.Directory, crew Crew) *Examiner {
	return &Examiner{broker: b, dir: dir, crew: crew}
}

// checks are the steps of an answer, by the kind of its subject. Earlier findings cover facts of later checks.
var checks = map[finding.Kind][]func(*explanation){
	finding.Message: {(*explanation).message},
	finding.Agent:   {(*explanation).agent},
	finding.Role:    {(*explanation).role},
	finding.Channel: {(*explanation).channel},
	finding.Everything: {
		(*explanation).mailboxes,
		(*explanation).gatedAgents,
		(*explanation).askedOperators,
		(*explanation).longClaims,
		func(e *explanation) { e.deadLetters(nil) },
		func(e *explanation) { e.late(selectLate, e.about.Session, mostOfAKind) },
		(*explanation).moreAgents,
	},
}

// Explain says why messages of the subject, or of the whole session, are stuck. It returns nothing
// about a subject that it does not know. Errors: fault.NotFound for a message or channel that does not
// exist, fault.Invalid for a text that is no id.
func (x *Examiner) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	e := x.explanation(q, about)
	for _, check := range checks[about.Kind] {
		if check(e); e.err != nil {
			return nil, fmt.Errorf("explain messages: %w", e.err)
		}
	}
	return e.found, nil
}

// Condition describes an agent in a sentence, and reports whether it is well: neither failed, stopped nor
// late, and not kept from work.
func (x *Examiner) Condition(
	q store.Querier, about finding.Question, agent string,
) (says string, well bool, err error) {
	r := x.roster(q, about)
	t, registered := r.taker(agent)
	switch {
	case r.err != nil || !registered:
		return "", true, r.err
	case t.Health == directory.Failed, t.Health == directory.Stopped, !t.haltedAt.IsZero(), !t.until.IsZero():
		says = r.describe(t, 0)
		return says, false, r.err
	case t.Health == directory.Late:
		return agent + " is late: its last call was at " + about.When(t.LastSeen), false, nil
	}
	return "the last call of " + agent + " was at " + about.When(t.LastSeen), true, nil
}

// An explanation gathers the findings of one answer. After an error they are not used.
type explanation struct {
	deliveryExplainer
	found []finding.Finding

	heldUp int             // findings about ordering keys
	idle   int             // findings about agents that get no work
	more   int             // such agents beyond mostOfAKind
	blamed map[string]bool // such agents, with a finding that covers the messages that wait for them
	slow   map[int64]bool  // mailboxes with a finding that covers their messages
}

func (x *Examiner) explanation(q store.Querier, about finding.Question) *explanation {
	return &explanation{deliveryExplainer: deliveryExplainer{x.roster(q, about)},
		blamed: map[string]bool{}, slow: map[int64]bool{}}
}

func (e *explanation) add(f finding.Finding) { e.found = append(e.found, f) }

// mailboxOf names the mailbox of an agent.
func mailboxOf(agent string) mail.MailboxRef {
	return mail.AgentRef(agent)
}

// revision is how texts and calls name a message.
func revision(n int64) string { return strconv.FormatInt(n, 10) }

// longer says how long a fact has lasted, and from when on that is a warning.
func longer(d, threshold time.Duration) string { return finding.Rough(d) + finding.After(threshold) }

// wait says how many messages wait.
func wait(n int64) string {
	if n == 1 {
		return "1 message waits"
	}
	return fmt.Sprintf("%d messages wait", n)
}

// upTo formats a count that ends at MostCounted.
func upTo(n int64) string {
	if n >= mail.MostCounted {
		return fmt.Sprintf("%d or more", mail.MostCounted)
	}
	return strconv.FormatInt(n, 10)
}

func agent(name string) *pb.Target { return &pb.Target{To: &pb.Target_Agent{Agent: name}} }

// nudge is the call that asks who takes from a mailbox to look into it.
func nudge(box mail.MailboxRef, subject string) calls.Call {
	to := agent(box.Name)
	switch box.Kind {
	case mail.RoleMailbox:
		to = &pb.Target{To: &pb.Target_Role{Role: box.Name}}
	case mail.ChannelMailbox:
		to = &pb.Target{To: &pb.Target_Channel{Channel: box.Name}}
	}
	return finding.Direct("nudge", to, subject)
}

// inbox is the call that lists the mailbox of the caller: of an operator, the operators'.
func inbox() calls.Call {
	return calls.Do(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
}
