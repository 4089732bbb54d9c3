package broker

import (
	"errors"
	"strings"

	"brokerd/internal/caller"
	"brokerd/internal/store"
)

// boxKind says whose a mailbox is. The numbers are those of the database.
type boxKind int

const (
	agentBox boxKind = iota + 1
	roleBox
	channelBox
)

// A mailboxRef names a mailbox within its session.
type mailboxRef struct {
	kind boxKind
	name string
}

// String returns the mailbox as a person writes it.
func (m mailboxRef) String() string {
	switch m.kind {
	case roleBox:
		return "role:" + m.name
	case channelBox:
		return "channel:" + m.name
	default:
		return m.name
	}
}

// parseMailbox reads what String writes.
func parseMailbox(s string) mailboxRef {
	if name, ok := strings.CutPrefix(s, "role:"); ok {
		return mailboxRef{roleBox, name}
	}
	if name, ok := strings.CutPrefix(s, "channel:"); ok {
		return mailboxRef{channelBox, name}
	}
	return mailboxRef{agentBox, s}
}

// boxKey names a mailbox in all sessions. Its id never changes, so it may be cached.
type boxKey struct {
	session int64
	ref     mailboxRef
}

// findMailbox returns the id of a mailbox, 0 if it does not exist yet.
func (b *Broker) findMailbox(q store.Querier, session int64, ref mailboxRef) (int64, error) {
	load := func() (int64, error) {
		var id int64
		err := q.QueryRow(selectMailbox, session, int(ref.kind), ref.name).Scan(&id)
		return id, err
	}
	var id int64
	var err error
	if tx, ok := q.(*store.Tx); ok {
		id, err = b.boxIDs.Get(tx, boxKey{session, ref}, load)
	} else {
		id, err = load()
	}
	if errors.Is(err, store.ErrNoRows) {
		return 0, nil
	}
	return id, err
}

// openMailbox returns the id of a mailbox, which is made if it does not exist yet.
func (b *Broker) openMailbox(tx *store.Tx, session int64, ref mailboxRef) (int64, error) {
	id, err := b.findMailbox(tx, session, ref)
	if err != nil || id != 0 {
		return id, err
	}
	err = tx.QueryRow(insertMailbox, session, int(ref.kind), ref.name).Scan(&id)
	return id, err
}

// waitingIn returns how many deliveries wait in a mailbox.
func waitingIn(q store.Querier, mailbox int64) (waiting int64, err error) {
	err = q.QueryRow(selectWaiting, mailbox).Scan(&waiting)
	return waiting, err
}

// boxDetails is the details of an event about one mailbox.
func boxDetails(q store.Querier, mailbox int64) (string, error) {
	name, err := boxName(q, mailbox)
	return `{"mailbox":` + quote(name) + `}`, err
}

// boxName returns the name of a mailbox as a person writes it.
func boxName(q store.Querier, mailbox int64) (string, error) {
	var ref mailboxRef
	var kind int
	err := q.QueryRow(selectMailboxName, mailbox).Scan(&kind, &ref.name)
	ref.kind = boxKind(kind)
	return ref.String(), err
}

// A tally gathers how the number of waiting deliveries changes, so that a function writes each
// mailbox once.
type tally map[int64]int64

func (t tally) flush(tx *store.Tx) {
	for mailbox, n := range t {
		if n == 0 {
			continue
		}
		tx.Exec(addWaiting, n, mailbox)
	}
}

// reachable returns the mailboxes that the actor may take work from: its own, its role's and its channels'.
func (b *Broker) reachable(q store.Querier, a actor) ([]box, error) {
	boxes := []box{{a.mailbox, mailboxRef{agentBox, a.Name}}}
	if a.Role != "" {
		role := mailboxRef{roleBox, a.Role}
		id, err := b.findMailbox(q, a.session.ID, role)
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, box{id, role})
	}
	rows := q.Query(selectSubscribed, a.mailbox)
	for rows.Next() {
		b := box{ref: mailboxRef{kind: channelBox}}
		if err := rows.Scan(&b.id, &b.ref.name); err != nil {
			return nil, err
		}
		boxes = append(boxes, b)
	}
	return boxes, rows.Err()
}

// operatorBox is the mailbox of operators who name no agent: what agents send to them, and the replies
// to their messages. Several operators share it.
var operatorBox = mailboxRef{agentBox, caller.System}

// operatorName is another name of operatorBox in a target, unless an agent has it.
const operatorName = "operator"

// A box is a mailbox with its id, 0 if it does not exist yet.
type box struct {
	id  int64
	ref mailboxRef
}

// null stores an empty string as NULL, which partial indexes leave out.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func nullInt(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}
