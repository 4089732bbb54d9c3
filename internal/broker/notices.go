package broker

import (
	"time"

	"brokerd/internal/content"
	"brokerd/internal/events"
	"brokerd/internal/store"
)

// MostNotices is how many notices one answer has at most.
const MostNotices = 100

// A Notice is a message with which the broker informs an agent, or all agents of a role.
type Notice struct {
	Agent   string // or
	Role    string
	Type    string
	Subject string // clipped to one line
	Payload string // JSON
	Task    string
	About   int64 // the revision of the grant or question that the notice is about, for Withdraw; 0 = none
}

// An UnreadNotice is a notice as an agent reads it.
type UnreadNotice struct {
	Revision  int64
	Type      string
	Subject   string
	Payload   string
	CreatedAt time.Time
}

// OfRole returns the names of the first agents of a role, up to limit, behind a name.
func OfRole(dir Directory, tx *store.Tx, session int64, role, after string, limit int) ([]string, error) {
	agents, err := dir.Matching(tx, session, Selection{Role: role, After: after, Most: limit})
	names := make([]string, len(agents))
	for i, a := range agents {
		names[i] = a.Name
	}
	return names, err
}

// CountNotices returns the number of unread notices in an agent's mailbox, at most most; with a mark, of those that are
// not offered with another one.
func CountNotices(q store.Querier, mailbox int64, mark string, most int) (n int64, err error) {
	row := q.QueryRow(countUnreadNotices, mailbox, most)
	if mark != "" {
		row = q.QueryRow(countUnofferedNotices, mailbox, mark, most)
	}
	err = row.Scan(&n)
	return n, err
}

// ReadNotices returns the oldest unread notices of an agent, at most MostNotices, and marks them read.
func (b *Broker) ReadNotices(tx *store.Tx, session int64, agent Agent) ([]UnreadNotice, error) {
	a := Actor{Agent: agent, Session: Session{ID: session}}
	var err error
	if a.Mailbox, err = b.Mailboxes.Find(tx, session, MailboxRef{AgentMailbox, agent.Name}); err != nil || a.Mailbox == 0 {
		return nil, err
	}
	return readNotices(tx, b.log, a)
}

// readNotices is ReadNotices for an agent whose mailbox is known.
func readNotices(tx *store.Tx, log *events.Log, a Actor) ([]UnreadNotice, error) {
	unread, revisions, err := ScanNotices(tx.Query(selectNotices, a.Mailbox, MostNotices))
	if err != nil || len(unread) == 0 {
		return nil, err
	}
	FinishNotices(tx, a.Mailbox, revisions)
	entry := a.Event("message.read")
	entry.Severity = events.Debug
	entry.Summary = counted(len(unread), "notice") + " read"
	entry.Details = RevisionsJSON("messages", revisions)
	_, err = log.Append(tx, entry)
	return unread, err
}

// ScanNotices returns notices and their revisions, from rows of revision, type, time and content.
func ScanNotices(rows *store.Rows) (unread []UnreadNotice, revisions []int64, err error) {
	defer rows.Close()
	for rows.Next() {
		var n UnreadNotice
		var stored []byte
		if err := rows.Scan(&n.Revision, &n.Type, &n.CreatedAt, &stored); err != nil {
			return nil, nil, err
		}
		n.Subject, n.Payload = content.Text(stored, content.Subject), content.Text(stored, content.Payload)
		unread, revisions = append(unread, n), append(revisions, n.Revision)
	}
	return unread, revisions, rows.Err()
}

// FinishNotices finishes those of the messages in an agent's mailbox that are unread notices.
func FinishNotices(tx *store.Tx, mailbox int64, messages []int64) {
	for _, message := range messages {
		tx.Exec(updateNoticeRead, mailbox, tx.Now(), message)
	}
}
