package state

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The kinds of chores: changes of more keys than one function of the writer may change.
const (
	expiryChore = "expiry" // of a closed session: its keys no longer expire
	ownerChore  = "owner"  // the keys of an agent that has deregistered have no owner
	chorePage   = 1000     // keys that one function changes
)

// SessionClosed ends the times to live of a session, in which nothing changes any more. It is a hook of
// the closing. The backlog does what is more than a page.
func (k *Keys) SessionClosed(tx *store.Tx, session directory.Session) error {
	_, err := k.backlog.Do(tx, work.Chore{Kind: expiryChore, Session: session.ID})
	return err
}

// AgentGone ends what a deregistered agent owns alone: others may write it. It is a hook of the
// deregistration. The backlog does what is more than a page; keys that the agent writes after it has
// registered again stay its own.
func (k *Keys) AgentGone(tx *store.Tx, a directory.Agent, _ string) error {
	_, err := k.backlog.Do(tx, work.Chore{Kind: ownerChore, Session: a.Session, Name: a.Name, Bound: tx.NextRevision()})
	return err
}

// doChore changes the next page of keys.
func (k *Keys) doChore(tx *store.Tx, c *work.Chore) (more bool, err error) {
	var n int64
	switch c.Kind {
	case expiryChore:
		n, err = tx.ExecCount(endExpiry, c.Session, chorePage)
	case ownerChore:
		n, err = tx.ExecCount(endOwnership, c.Name, c.Session, c.Bound, chorePage)
	default:
	}
	return n == chorePage, err
}

// A record is a version of a key as an export has it.
type record struct {
	Namespace string          `json:"namespace"`
	Key       string          `json:"key"`
	Version   int64           `json:"version"`
	Revision  int64           `json:"revision"`
	Type      string          `json:"type"`
	Value     json.RawMessage `json:"value"` // null for a document's version and for a deletion
	Deleted   bool            `json:"deleted"`
	Current   bool            `json:"current"` // the newest version
	Author    string          `json:"author"`
	ChangedAt time.Time       `json:"changed_at"`
	CreatedAt time.Time       `json:"created_at"`
	ExpiresAt *time.Time      `json:"expires_at"`
	Owner     string          `json:"owner"`
	TaskID    string          `json:"task_id"`
	Entry     int             `json:"entry"` // of a document: the number of what it added
	Text      string          `json:"text"`
}

// recordBytes is about how much Records returns at a time.
const recordBytes = 1 << 20

// Records returns the versions of a session's keys after a position, each as one line of JSON, in the order of their changes, and the
// position of the last one. Those of a document are its entries. What the namespace global holds belongs to no session.
func (k *Keys) Records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	var from int64
	if after != "" {
		if from, err = strconv.ParseInt(after, 10, 64); err != nil {
			return nil, "", err
		}
	}
	rows := q.Query(everyVersion, session, from, limit)
	defer rows.Close()
	for bytes := 0; bytes < recordBytes && rows.Next(); {
		var r record
		var owner string
		id, e, err := scanVersion(rows, &r.Current, &owner)
		if err != nil {
			return nil, "", err
		}
		r.Namespace, r.Key, r.Version, r.Revision, r.Type = e.Namespace, e.Key, e.Version, e.Revision, e.Type.String()
		r.Deleted, r.Author, r.ChangedAt, r.CreatedAt, r.Owner = e.Deleted, e.Author, e.ChangedAt, e.CreatedAt, e.Owner
		r.TaskID = e.TaskID
		if r.Current {
			r.Owner = owner
		}
		if !e.ExpiresAt.IsZero() {
			r.ExpiresAt = &e.ExpiresAt
		}
		switch {
		case e.Deleted:
		case e.Appended != nil:
			r.Entry, r.Text = e.Appended.Number, e.Appended.Text
		case e.Type == String:
			if r.Value, err = json.Marshal(e.Value); err != nil {
				return nil, "", err
			}
		default:
			r.Value = json.RawMessage(e.Value)
		}
		line, err := json.Marshal(r)
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, line), strconv.FormatInt(id, 10)
		bytes += len(line)
	}
	return lines, last, rows.Err()
}

// Erase removes the oldest versions of a session that is being deleted, up to limit, with the keys
// that have no others. After the last of them it ends what its agents own in the namespace global,
// as many keys. It reports whether there may be more.
func (k *Keys) Erase(tx *store.Tx, session int64, limit int) (more bool, err error) {
	if more, err = k.erase(tx, session, limit); err != nil {
		return false, fmt.Errorf("remove state: %w", err)
	}
	return more, nil
}

func (k *Keys) erase(tx *store.Tx, session int64, limit int) (more bool, err error) {
	var last int64
	if err := tx.QueryRow(lastOfOldest, session, limit).Scan(&last); err != nil {
		return false, err
	}
	if last == 0 {
		left, err := tx.ExecPage(limit, []string{endOwnerships}, session)
		return left == 0, err
	}
	// A crash after any page leaves each document with the entries that its key says.
	for _, statement := range []string{shrinkDocuments, deleteEmptied, deleteOldest} {
		tx.Exec(statement, session, last)
	}
	return true, nil
}

// Forget removes the floor of a session without keys, and ends its watches.
func (k *Keys) Forget(tx *store.Tx, session int64) {
	tx.Exec(deleteFloor, session)
	tx.OnCommit(func() {
		k.pruner.forget(session)
		k.hub.wake(session) // who watches it finds it gone
	})
}

// AwaitClosed does what is left to do in a closed session, and returns when that is done.
func (k *Keys) AwaitClosed(ctx context.Context, session int64) error {
	return k.backlog.FinishSession(ctx, session)
}

// Data is what the keeper exports and removes of a session.
func (k *Keys) Data() work.Data {
	return work.Data{File: "state.jsonl", Lines: k.Records, Erase: k.Erase, Forget: k.Forget}
}
