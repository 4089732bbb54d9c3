package broker

import (
	"strconv"
	"time"

	"brokerd/internal/fault"
)

// Limits of requests that the rules of the broker need too.
const (
	MaxBatch = 1000                 // items of one call
	MaxTypes = 100                  // types, of a filter and of a summary
	MaxTTL   = 365 * 24 * time.Hour // how far ahead a message may expire, become due, or need its response
)

// maxCopies bounds the rows that the messages of one function of the writer make: a copy counts once, with
// a reminder twice, each recipient twice more, and each message twice, with a question or an answer three
// times, beside its artifacts. It leaves some rows of store.MaxChanged to the rest of the function.
const maxCopies = 9500

// fanOut counts the copies of a message. fault.Invalid (FANOUT_TOO_LARGE) beyond maxCopies.
func (s *sending) fanOut(d *Draft, to []*room, answers *answer) error {
	copies, each := 2+len(d.Artifacts), 1
	if d.Response || answers.settles() {
		copies++
	}
	if d.ResendAfter > 0 {
		each++
	}
	for _, r := range to {
		copies += each
		if !r.counted {
			copies += 2
		}
	}
	if s.copies+copies > maxCopies {
		return fanOutTooLarge(len(to))
	}
	s.copies += copies
	for _, r := range to {
		r.counted = true
	}
	return nil
}

// reach refuses more recipients than fanOut allows before their mailboxes are read.
func (s *sending) reach(names []string) error {
	if s.audience != nil || s.overfull {
		return nil // the broker sends its own copies in pages
	}
	copies := s.copies
	for _, name := range names {
		copies++
		if s.rooms[MailboxRef{AgentMailbox, name}] == nil {
			copies += 2
		}
	}
	if copies > maxCopies {
		return fanOutTooLarge(len(names))
	}
	return nil
}

func fanOutTooLarge(recipients int) error {
	return fault.New(fault.Invalid, "FANOUT_TOO_LARGE",
		"the messages up to this one, which has %d recipients, make more than %d copies, each recipient and message counted as two more: "+
			"send fewer messages in a call, or to fewer agents", recipients, maxCopies).
		With("limit", strconv.Itoa(maxCopies)).With("recipients", strconv.Itoa(recipients))
}

// MailboxFull refuses a message that must get somewhere and gets nowhere.
func MailboxFull(to Target, limit int64) error {
	e := fault.New(fault.Exhausted, "MAILBOX_FULL",
		"nobody got the message: every mailbox that %s means is full, with %d waiting (session setting mailbox_limit)", to, limit)
	e.RetryAfter = time.Second // a consumer may have taken a message by then
	return e.With("limit", "mailbox_limit").With("mailbox_limit", strconv.FormatInt(limit, 10))
}
