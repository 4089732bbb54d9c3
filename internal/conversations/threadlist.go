package conversations

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/content"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

const (
	listStretch        = 1000 // messages, of any session, that a list of conversations reads in one snapshot
	listStretches      = 20   // snapshots of one page
	threadSample       = 100  // newest messages of a conversation that its summary reads
	maxListedNames     = 100  // participants in one summary
	maxListedQuestions = 10   // open questions in one summary
	maxListedReached   = 300  // deliveries of the sample whose mailboxes are participants
)

// A Listing is which conversations to list, and from where on.
type Listing struct {
	Open     bool      // only those with an open question
	From, To time.Time // of the last message
	Size     int
	After    Place // zero = from the start
}

// A Place is a position in the list of conversations. The list is that of the revision Until;
// its messages from Before on have been read.
type Place struct{ Until, Before int64 }

// A Page is one page of the list of conversations.
type Page struct {
	Threads  []Thread
	Next     Place // zero = this is the last
	Revision int64
}

// Threads lists the conversations of the session, the one with the newest message first. All pages
// list those of the revision of the first page, in their order at that revision, so that a
// conversation that receives a message meanwhile is neither missing nor repeated. A page may be
// empty although others follow.
//
// A conversation has no row. The list reads the messages from the newest on, and lists a conversation
// at its last message.
func (r *Registry) Threads(ctx context.Context, c identity.Caller, l Listing) (Page, error) {
	w := walk{Registry: r, listing: l, seen: map[string]bool{}, at: l.After}
	for n := 0; n < listStretches && !w.done; n++ {
		err := r.store.Read(ctx, func(s *store.Snapshot) error {
			a, err := r.broker.Mailboxes.Acting(s, c)
			if err != nil {
				return err
			}
			if w.page.Revision = s.Revision(); w.at == (Place{}) {
				w.at = Place{Until: s.Revision(), Before: s.Revision() + 1}
			}
			if n == 0 {
				w.begun = w.at
			}
			return w.read(s, a.Session.ID)
		})
		if err != nil {
			return Page{}, err
		}
	}
	if !w.done {
		w.page.Next = w.at
	}
	return w.page, nil
}

// A walk reads messages from the newest on and gathers a page of conversations.
type walk struct {
	*Registry
	listing Listing
	begun   Place
	at      Place
	seen    map[string]bool // conversations with a message between at and begun
	page    Page
	done    bool // there are no further messages, or page.Next is set
}

// A step is a message of a walk.
type step struct {
	revision int64
	name     string
	sent     time.Time
}

// read reads one stretch of messages.
func (w *walk) read(q store.Querier, session int64) error {
	end, err := stretchEndBelow(q, w.at.Before)
	if err != nil {
		return err
	}
	steps, err := readSteps(q.Query(selectThreadSteps, end, w.at.Before, session))
	if err != nil {
		return err
	}
	old := 0
	for _, m := range steps {
		if m.sent.Before(w.listing.From) {
			old++
		}
		listed, err := w.lists(q, session, m)
		if err != nil {
			return err
		}
		if listed && len(w.page.Threads) == w.listing.Size {
			w.page.Next, w.done = w.at, true
			return nil
		}
		w.at.Before = m.revision
		if !listed {
			continue
		}
		t, err := w.summarize(q, session, m.name)
		if err != nil {
			return err
		}
		w.page.Threads = append(w.page.Threads, t)
	}
	w.at.Before = end + 1
	// A whole stretch is too old: older messages are as well. A clock that was set back makes single
	// messages look old.
	w.done = end == 0 || old > 0 && old == len(steps)
	return nil
}

// lists reports whether a message is the last one of a conversation that is to be listed.
func (w *walk) lists(q store.Querier, session int64, m step) (bool, error) {
	if w.seen[m.name] {
		return false, nil
	}
	w.seen[m.name] = true
	l := &w.listing
	if m.sent.Before(l.From) || !l.To.IsZero() && !m.sent.Before(l.To) {
		return false, nil
	}
	if w.begun.Before <= w.begun.Until {
		var later bool
		err := q.QueryRow(existsInThread, m.name, w.begun.Before, w.begun.Until, session).Scan(&later)
		if err != nil || later {
			return false, err
		}
	}
	if !l.Open {
		return true, nil
	}
	var open bool
	err := q.QueryRow(existsOpenQuestion, session, m.name).Scan(&open)
	return open, err
}

// stretchEndBelow returns the revision of the first message that the next stretch below a revision
// does not reach, 0 if there is none.
func stretchEndBelow(q store.Querier, before int64) (end int64, err error) {
	err = q.QueryRow(selectStretchEndDown, 0, before, listStretch).Scan(&end)
	if errors.Is(err, store.ErrNoRows) {
		return 0, nil
	}
	return end, err
}

func readSteps(rows *store.Rows) ([]step, error) {
	var steps []step
	for rows.Next() {
		var m mail.Message
		var id []byte
		if err := rows.Scan(&m.Revision, &id, &m.Thread, &m.CreatedAt); err != nil {
			return nil, err
		}
		copy(m.ID[:], id)
		steps = append(steps, step{m.Revision, m.ThreadID(), m.CreatedAt})
	}
	return steps, rows.Err()
}

// A ThreadMessage is a message of a conversation with its type.
type ThreadMessage struct {
	mail.Message
	Type string
}

// Subject returns one line that says what the message is about.
func (m *ThreadMessage) Subject() string { return gist(m.Content) }

// gist returns the title of a message or, if it has none, the beginning of its payload.
func gist(stored []byte) string {
	if t := content.Title(stored); t != "" {
		return t
	}
	payload := strings.Join(strings.Fields(content.Text(stored, content.Payload)), " ")
	return content.Clip(payload, validate.MaxLine)
}

// summarize describes a conversation by its first message and its newest ones, however many it has.
func (r *Registry) summarize(q store.Querier, session int64, name string) (Thread, error) {
	t := Thread{Name: name}
	revisions, senders, err := newestOf(q, session, name)
	if err != nil {
		return t, err
	}
	t.Messages = int64(len(revisions))
	if t.FirstMessage, err = threadMessageAt(q, session, revisions[len(revisions)-1]); err != nil {
		return t, err
	}
	if t.LastMessage, err = threadMessageAt(q, session, revisions[0]); err != nil {
		return t, err
	}
	if t.Messages == threadSample {
		if t.FirstMessage, err = firstOf(q, session, name); err != nil {
			return t, err
		}
	}
	t.First, t.Last = t.FirstMessage.CreatedAt, t.LastMessage.CreatedAt
	if t.Participants, err = participantsOf(q, append(senders, t.FirstMessage.Sender), revisions); err != nil {
		return t, err
	}
	return t, r.standing(q, session, &t, maxListedQuestions)
}

// newestOf returns revisions and senders of the newest messages of a conversation, newest first.
func newestOf(q store.Querier, session int64, name string) (revisions []int64, senders []string, err error) {
	rows := q.Query(selectNewestOfThread, name, session, threadSample)
	for rows.Next() {
		var revision int64
		var sender string
		if err := rows.Scan(&revision, &sender); err != nil {
			return nil, nil, err
		}
		revisions, senders = append(revisions, revision), append(senders, sender)
	}
	if err := rows.Err(); err != nil || len(revisions) == threadSample {
		return revisions, senders, err
	}
	m, err := startOf(q, session, name)
	if err == nil {
		revisions, senders = append(revisions, m.Revision), append(senders, m.Sender)
	} else if fault.KindOf(err) == fault.NotFound {
		err = nil
	}
	return revisions, senders, err
}

// startOf returns the message that a conversation is named after. Errors: fault.NotFound if it has
// another name.
func startOf(q store.Querier, session int64, name string) (mail.Message, error) {
	ref := msgid.Ref{Text: name}
	revision, id := broker.ThreadStart(name)
	ref.Revision = revision
	copy(ref.ID[:], id)
	m, err := mail.FindMessage(q, session, ref)
	if err == nil && m.Thread != "" {
		err = fault.Missing("thread", name, "no message began thread %s", name)
	}
	return m, err
}

// firstOf returns the first message of a conversation.
func firstOf(q store.Querier, session int64, name string) (*ThreadMessage, error) {
	m, err := startOf(q, session, name)
	if fault.KindOf(err) == fault.NotFound {
		var revision int64
		if err = q.QueryRow(selectFirstOfThread, name, session).Scan(&revision); err != nil {
			return nil, err
		}
		return threadMessageAt(q, session, revision)
	}
	if err != nil {
		return nil, err
	}
	return threadMessageAt(q, session, m.Revision)
}

func threadMessageAt(q store.Querier, session, revision int64) (*ThreadMessage, error) {
	m, err := mail.FindMessage(q, session, msgid.Ref{Revision: revision})
	if err != nil {
		return nil, err
	}
	t := &ThreadMessage{Message: m}
	return t, q.QueryRow(selectType, revision).Scan(&t.Type)
}

// participantsOf returns the names of the senders of messages, and of the mailboxes and holders of
// their deliveries, sorted.
func participantsOf(q store.Querier, names []string, messages []int64) ([]string, error) {
	list, _ := json.Marshal(messages) // numbers always marshal
	rows := q.Query(selectReached, string(list), maxListedReached)
	for rows.Next() {
		var ref mail.MailboxRef
		var kind int
		var holder string
		if err := rows.Scan(&kind, &ref.Name, &holder); err != nil {
			return nil, err
		}
		ref.Kind = mail.MailboxKind(kind)
		if names = append(names, ref.String()); holder != "" {
			names = append(names, holder)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), maxListedNames)], rows.Err()
}
