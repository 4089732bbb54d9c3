package auth

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// mostNotes bounds the notes that wait for the writer. Further ones are dropped.
const mostNotes = 1000

// notes are the uses and failures that wait for the writer.
type notes struct {
	mu      sync.Mutex // guards pending
	pending []note
}

// A note is a use of a credential or, with a refusal, a number of failed attempts.
type note struct {
	client string

	credential int64 // id; 0 = the operator's file
	at         time.Time

	count   int
	refusal *fault.Error // the last one
}

// note adds a note, and asks the writer to write it with its next batch. It does not wait.
func (r *Registry) note(n note) {
	r.notes.mu.Lock()
	if len(r.notes.pending) < mostNotes {
		r.notes.pending = append(r.notes.pending, n)
	}
	r.notes.mu.Unlock()
	r.writing.Kick()
}

// writeNotes appends an event for each pending note.
func (r *Registry) writeNotes(tx *store.Tx, _ []struct{}) error {
	r.notes.mu.Lock()
	list := slices.Clone(r.notes.pending)
	r.notes.mu.Unlock()
	for _, n := range list {
		e, err := n.entry()
		if err != nil {
			return err
		}
		if _, err := r.log.Append(tx, e); err != nil {
			return err
		}
		if n.refusal == nil && n.credential != 0 {
			tx.Exec(updateUse, n.at, n.client, n.credential)
		}
	}
	tx.OnCommit(func() {
		r.notes.mu.Lock()
		r.notes.pending = slices.Delete(r.notes.pending, 0, len(list))
		r.notes.mu.Unlock()
	})
	return nil
}

// entry returns the event of a note.
func (n note) entry() (events.Entry, error) {
	e := events.Entry{Category: events.System, Source: identity.System}
	details := map[string]any{"address": n.client}
	if n.refusal == nil {
		used := CredentialFile
		if n.credential != 0 {
			used = name(n.credential)
		}
		e.Type, e.Summary, e.Related = "credential.used", "credential "+used+" used from "+n.client, []string{used}
		details["credential"] = used
	} else {
		e.Type, e.Severity = "credential.refused", events.Warning
		e.Summary = fmt.Sprintf("%d failed attempts from %s", n.count, n.client)
		if n.count == 1 {
			e.Summary = "a failed attempt from " + n.client
		}
		details["count"], details["reason"] = n.count, n.refusal.Reason
		if id := n.refusal.Metadata["credential"]; id != "" {
			details["credential"], e.Related = id, []string{id}
		}
	}
	text, err := json.Marshal(details)
	e.Details = string(text)
	return e, err
}
