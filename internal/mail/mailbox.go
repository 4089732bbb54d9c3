package mail

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// MailboxKind says whose a mailbox is. The numbers are those of the database.
type MailboxKind int

// The kinds of mailbox.
const (
	AgentMailbox MailboxKind = iota + 1
	RoleMailbox
	ChannelMailbox
)

// A MailboxRef names a mailbox within its session.
type MailboxRef struct {
	Kind MailboxKind
	Name string
}

// AgentRef names the mailbox of an agent.
func AgentRef(agent string) MailboxRef { return MailboxRef{AgentMailbox, agent} }

// RoleRef names the mailbox of a role.
func RoleRef(role string) MailboxRef { return MailboxRef{RoleMailbox, role} }

// ChannelRef names the mailbox of a channel.
func ChannelRef(channel string) MailboxRef { return MailboxRef{ChannelMailbox, channel} }

// String returns the mailbox as a person writes it.
func (m MailboxRef) String() string {
	switch m.Kind {
	case RoleMailbox:
		return "role:" + m.Name
	case ChannelMailbox:
		return "channel:" + m.Name
	default:
		return m.Name
	}
}

// ParseMailbox reads what String writes.
func ParseMailbox(s string) MailboxRef {
	if name, ok := strings.CutPrefix(s, "role:"); ok {
		return RoleRef(name)
	}
	if name, ok := strings.CutPrefix(s, "channel:"); ok {
		return ChannelRef(name)
	}
	return AgentRef(s)
}

// boxKey names a mailbox in all sessions. Its id never changes, so it may be cached.
type boxKey struct {
	session int64
	ref     MailboxRef
}

// Mailboxes finds mailboxes and actors, and keeps the ids of mailboxes in memory. Its methods may be called
// concurrently.
type Mailboxes struct {
	dir *directory.Directory
	ids store.Cache[boxKey, int64]
}

// NewMailboxes returns the mailboxes of agents that the directory knows.
func NewMailboxes(dir *directory.Directory) *Mailboxes { return &Mailboxes{dir: dir} }

// Clear clears the memory, when mailboxes are removed.
func (m *Mailboxes) Clear(tx *store.Tx) { m.ids.Clear(tx) }

// Find returns the id of a mailbox, 0 if it does not exist yet.
func (m *Mailboxes) Find(q store.Querier, session int64, ref MailboxRef) (int64, error) {
	load := func() (int64, error) {
		var id int64
		err := q.QueryRow(selectMailbox, session, int(ref.Kind), ref.Name).Scan(&id)
		return id, err
	}
	var id int64
	var err error
	if tx, ok := q.(*store.Tx); ok {
		id, err = m.ids.Get(tx, boxKey{session, ref}, load)
	} else {
		id, err = load()
	}
	if errors.Is(err, store.ErrNoRows) {
		return 0, nil
	}
	return id, err
}

// Open returns the id of a mailbox, which is made if it does not exist yet.
func (m *Mailboxes) Open(tx *store.Tx, session int64, ref MailboxRef) (int64, error) {
	id, err := m.Find(tx, session, ref)
	if err != nil || id != 0 {
		return id, err
	}
	err = tx.QueryRow(insertMailbox, session, int(ref.Kind), ref.Name).Scan(&id)
	return id, err
}

// OpenChannel returns the id of a channel's mailbox. The channel is made if it does not exist yet.
func (m *Mailboxes) OpenChannel(tx *store.Tx, a Actor, name string) (int64, error) {
	id, err := m.Open(tx, a.Session.ID, ChannelRef(name))
	if err != nil {
		return 0, err
	}
	tx.Exec(insertChannel, id, startTTL(name))
	return id, nil
}

// Reachable returns the mailboxes that the actor may take work from: its own, its role's and its channels'.
func (m *Mailboxes) Reachable(q store.Querier, a Actor) ([]Mailbox, error) {
	boxes := []Mailbox{{a.Mailbox, AgentRef(a.Name)}}
	if a.Role != "" {
		role := RoleRef(a.Role)
		id, err := m.Find(q, a.Session.ID, role)
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, Mailbox{id, role})
	}
	rows := q.Query(selectSubscribed, a.Mailbox)
	for rows.Next() {
		b := Mailbox{Ref: MailboxRef{Kind: ChannelMailbox}}
		if err := rows.Scan(&b.ID, &b.Ref.Name); err != nil {
			return nil, err
		}
		boxes = append(boxes, b)
	}
	return boxes, rows.Err()
}

// Visible returns the ids of the mailboxes that the actor may see, or of the one that is named, as JSON for the
// queries. nil means all mailboxes of the session.
func (m *Mailboxes) Visible(q store.Querier, a Actor, mailbox string) (any, error) {
	if a.System() && mailbox == "" {
		return nil, nil
	}
	var boxes []Mailbox
	ref := ParseMailbox(mailbox)
	if a.System() {
		id, err := m.Find(q, a.Session.ID, ref)
		if err != nil {
			return nil, err
		}
		if id != 0 {
			boxes = []Mailbox{{id, ref}}
		}
	} else {
		var err error
		if a.Mailbox, err = m.Find(q, a.Session.ID, AgentRef(a.Name)); err != nil {
			return nil, err
		}
		if boxes, err = m.Reachable(q, a); err != nil {
			return nil, err
		}
		if mailbox != "" {
			boxes = slices.DeleteFunc(boxes, func(b Mailbox) bool { return b.Ref != ref })
		}
	}
	if len(boxes) == 0 {
		return nil, fault.Missing("mailbox", mailbox, "there is no mailbox %q here, or it is not yours", mailbox)
	}
	return idsOf(boxes), nil
}

// Choose returns the mailboxes that are named, or all that the actor may take from. They exist afterwards.
func (m *Mailboxes) Choose(tx *store.Tx, a Actor, names []string) ([]Mailbox, error) {
	all, err := m.Reachable(tx, a)
	if err != nil {
		return nil, err
	}
	chosen := all
	if len(names) > 0 {
		chosen = nil
		for _, name := range names {
			i := indexBox(all, ParseMailbox(name))
			if i < 0 {
				return nil, fault.New(fault.Denied, "NOT_YOUR_MAILBOX",
					"agent %q may not take from %q: only from its own mailbox, its role's and the channels it subscribes to",
					a.Name, name)
			}
			if indexBox(chosen, all[i].Ref) < 0 {
				chosen = append(chosen, all[i])
			}
		}
	}
	for i := range chosen {
		if chosen[i].ID == 0 {
			if chosen[i].ID, err = m.Open(tx, a.Session.ID, chosen[i].Ref); err != nil {
				return nil, err
			}
		}
	}
	return chosen, nil
}

func indexBox(boxes []Mailbox, ref MailboxRef) int {
	for i, b := range boxes {
		if b.Ref == ref {
			return i
		}
	}
	return -1
}

// MostCounted is the highest number that counts of deliveries reach: 1,000 stands for 1,000 or
// more. So the time that a count takes does not depend on how much waits.
const MostCounted = 1000

// Counts returns how many of the newest 1,000 unfinished deliveries in the agent's own mailbox it
// has not read, notices aside, and how many deliveries it could claim now, up to MostCounted.
func (m *Mailboxes) Counts(q store.Querier, session int64, agent directory.Agent) (unread, claimable int64, err error) {
	a := Actor{Agent: agent, Session: directory.Session{ID: session}}
	if a.Mailbox, err = m.Find(q, session, AgentRef(agent.Name)); err != nil {
		return 0, 0, err
	}
	if err := q.QueryRow(countUnread, a.Mailbox, MostCounted).Scan(&unread); err != nil {
		return 0, 0, err
	}
	boxes, err := m.Reachable(q, a)
	if err != nil {
		return 0, 0, err
	}
	for _, box := range boxes {
		if claimable == MostCounted {
			break
		}
		n, err := CountReady(q, box.ID, MostCounted-claimable)
		if err != nil {
			return 0, 0, err
		}
		claimable += n
	}
	return unread, claimable, nil
}

// CountReady returns how many deliveries of a mailbox could be claimed now, at most most.
func CountReady(q store.Querier, mailbox, most int64) (n int64, err error) {
	err = q.QueryRow(countReady, mailbox, most).Scan(&n)
	return n, err
}

// WaitingIn returns how many deliveries wait in a mailbox.
func WaitingIn(q store.Querier, mailbox int64) (waiting int64, err error) {
	err = q.QueryRow(selectWaiting, mailbox).Scan(&waiting)
	return waiting, err
}

// MailboxDetails returns the details of an event about one mailbox.
func MailboxDetails(q store.Querier, mailbox int64) (string, error) {
	name, err := MailboxName(q, mailbox)
	return `{"mailbox":` + events.Quote(name) + `}`, err
}

// MailboxName returns the name of a mailbox as a person writes it.
func MailboxName(q store.Querier, mailbox int64) (string, error) {
	var ref MailboxRef
	var kind int
	err := q.QueryRow(selectMailboxName, mailbox).Scan(&kind, &ref.Name)
	ref.Kind = MailboxKind(kind)
	return ref.String(), err
}

// A Tally gathers how the number of waiting deliveries of mailboxes changes, so that a function writes each mailbox
// once.
type Tally map[int64]int64

// Flush writes the changes.
func (t Tally) Flush(tx *store.Tx) {
	for mailbox, n := range t {
		AddWaiting(tx, mailbox, n)
	}
}

// AddWaiting adds n to the number of deliveries that wait in a mailbox.
func AddWaiting(tx *store.Tx, mailbox, n int64) {
	if n != 0 {
		tx.Exec(addWaiting, n, mailbox)
	}
}

// idsOf returns the ids of mailboxes as JSON for the queries.
func idsOf(boxes []Mailbox) string {
	ids := make([]int64, len(boxes))
	for i, b := range boxes {
		ids[i] = b.ID
	}
	list, _ := json.Marshal(ids) // numbers always marshal
	return string(list)
}

// CountDeadIn counts the dead letters of a session, at most most. scope has the ids of the mailboxes as JSON; nil
// stands for all.
func CountDeadIn(q store.Querier, session int64, scope any, most int) (n int, err error) {
	err = q.QueryRow(countDeadIn, session, scope, most).Scan(&n)
	return n, err
}

// OperatorMailbox is the mailbox of operators who name no agent: what agents send to them, and the replies
// to their messages. Several operators share it.
var OperatorMailbox = AgentRef(identity.System)

// OperatorName is another name of OperatorMailbox in a target, unless an agent has it.
const OperatorName = "operator"

// A Mailbox is a mailbox with its id, 0 if it does not exist yet.
type Mailbox struct {
	ID  int64
	Ref MailboxRef
}

// Null stores an empty string as NULL, which partial indexes leave out.
func Null(s string) any {
	if s == "" {
		return nil
	}
	return s
}
