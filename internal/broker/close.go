package broker

import (
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// SessionClosed ends what goes on in a session that is closed for good: streams and waiting calls end, and what is unfinished is
// CANCELLED, since nobody can finish it any more. It is a hook of the closing.
func (b *Broker) SessionClosed(tx *store.Tx, session Session) error {
	boxes, err := sessionBoxes(tx, session.ID)
	if err != nil {
		return err
	}
	var ready readied
	for _, box := range boxes {
		ready.seen(box.id) // its readers end
	}
	running, err := sessionClaims(tx, session.ID)
	if err != nil {
		return err
	}
	if err := b.traceClosed(tx, session, running); err != nil {
		return err
	}
	for _, statement := range []string{cancelClaimed, cancelPending, cancelDelayed, cancelBlocked, cancelNotices, settleQuestions} {
		if _, err := tx.Exec(statement, tx.Now(), session.ID); err != nil {
			return err
		}
	}
	for _, statement := range []string{clearAllWaiting, deleteAllResends, deleteDepartures, deleteRerank} {
		if _, err := tx.Exec(statement, session.ID); err != nil {
			return err
		}
	}
	b.endAsks(tx, session.ID, "", errSessionClosed(session.Name))
	b.dismissSession(tx, session.ID, errSessionClosed(session.Name))
	tx.OnCommit(func() {
		b.rates.forget(session.Name)
		for _, k := range running {
			b.claims.Remove(k)
		}
		b.hub.signal(ready)
	})
	return nil
}

func errSessionClosed(name string) error {
	return fault.New(fault.Precondition, "SESSION_CLOSED",
		"the session %q is closed: it can be read, exported and deleted, and nothing in it changes any more", name)
}

// sessionClaims returns the deliveries of a session that are claimed.
func sessionClaims(q store.Querier, session int64) ([]key, error) {
	return readKeys(q.Query(selectSessionClaims, session))
}
