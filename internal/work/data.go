package work

import (
	"context"
	"io"
	"time"

	"brokerd/internal/store"
)

// Data is one kind of data of a session, beside messages and events. The keeper exports, archives and
// removes it.
type Data struct {
	// File is the file of an export. Empty = exports leave the part out, and Lines is nil.
	File string
	// Lines returns the rows after a name as lines of JSON, and the name of the last one. No lines
	// are the end.
	Lines func(q store.Querier, session int64, after string, limit int) ([][]byte, string, error)
	// Contents passes the files that belong to the rows to a function, each with its name in the export,
	// in a folder such as artifacts/NAME; nil if there are none.
	Contents func(ctx context.Context, session int64, to func(file string, content io.Reader) error) error
	// Erase removes up to about limit rows of a session that is being deleted, and reports whether
	// there may be more; nil if another part removes them.
	Erase func(tx *store.Tx, session int64, limit int) (bool, error)
	// Forget removes the few rows that Erase leaves, and what is in memory; nil if there are none.
	Forget func(tx *store.Tx, session int64)

	// The fields below are for work that finishes, such as tasks. The keeper archives it when it has
	// been finished for as long as the session keeps messages, and removes it then.

	// Kind names the archive files, such as tasks in tasks-2026-01-02.jsonl.gz. Empty = the part has
	// no such work, and the fields below are nil.
	Kind string
	// Finished returns work of a session that finished at or before a time and that Remove can remove
	// now, the oldest end first: at most limit pieces. A piece stays out of the list as long as
	// unfinished work needs it: a task while an unfinished task depends on it or is its child. It may
	// return fewer pieces than limit, but none only if there are none. The lines are those that Lines
	// returns for the same pieces, JSON objects with at least one field.
	Finished func(q store.Querier, session int64, before time.Time, limit int) ([]Done, error)
	// Look is Finished for a part that needs several reads, in place of it. If it returns no pieces, next
	// is when the next piece that may be returned finished; zero if there is none.
	Look func(ctx context.Context, session int64, before time.Time, limit int) (done []Done, next time.Time, err error)
	// CountFinished counts the pieces that Finished returns without a limit. Nil = Prune leaves the
	// part out.
	CountFinished func(q store.Querier, session int64, before time.Time) (int64, error)
	// Remove removes pieces that Finished has returned, with all rows that belong to them, and adds no
	// event. Errors: fault.Conflict if Finished would no longer return one of them as it did; the
	// keeper then keeps them all and tries again later.
	Remove func(tx *store.Tx, session int64, done []Done) error
}

// A Standing is the state of messages with no other messages between them. No message can come between them later,
// since each new message has a higher revision. A time is the latest of all of them.
type Standing struct {
	First      int64 // revision
	Last       int64
	Messages   int
	Session    int64
	CreatedAt  time.Time
	Channel    string    // their target or label
	Deliveries int       // how many they have
	Finished   bool      // every delivery is finished, and no question waits for a response
	FinishedAt time.Time // when the last delivery finished that is no dead letter; zero if there is none
	DeadAt     time.Time // when the last delivery became a dead letter; zero if there is none
	Follows    bool      // no other message lies between the one before it in the list and this one
	Sums       [3]int64  // of the deliveries that Records has read: any change of a finished delivery changes them
}

// Join adds the messages that follow to a standing.
func (s *Standing) Join(next *Standing) {
	s.Last = next.Last
	s.Messages += next.Messages
	s.Deliveries += next.Deliveries
	for i, sum := range next.Sums {
		s.Sums[i] += sum
	}
}
