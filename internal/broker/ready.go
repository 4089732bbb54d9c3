package broker

import (
	"time"

	"brokerd/internal/store"
)

// A ready is a delivery that can be handed out.
type ready struct {
	Claim
	place
	kind        string
	priority    int
	task        string
	correlation string
	claims      int
}

// take claims a ready delivery for an agent and completes r.Claim.
func take(tx *store.Tx, r *ready, holder int64, consumer string, lasts time.Duration) {
	if r.fresh {
		tx.Exec(updateClaimFresh, holder, consumer, tx.Now(), lasts, tx.Now(), r.key.message, r.key.mailbox)
	} else {
		tx.Exec(updateClaim, holder, consumer, tx.Now(), lasts, r.key.message, r.key.mailbox)
	}
	r.Number = r.claims + 1
	r.ExpiresIn = lasts
}

// readReady reads the rows of the selectReady queries. A content of more than 4 KiB is left unread until give: not
// all that is found is given.
func readReady(rows *store.Rows, box Mailbox) ([]ready, error) {
	var found []ready
	for rows.Next() {
		var r ready
		var id []byte
		var attempts int
		var delivered int64
		if err := rows.Scan(&r.place.rank, &r.key.message, &r.claims, &attempts, &r.Claim.MaxAttempts, &delivered, &r.ordered,
			&id, &r.Sender, &r.SenderRole, &r.CreatedAt, &r.ExpiresAt, &r.Thread, &r.kind, &r.priority,
			&r.task, &r.correlation, &r.Content, &r.unread); err != nil {
			return nil, err
		}
		if r.Content != nil {
			r.unread = 0
		}
		copy(r.Message.ID[:], id)
		r.place.message, r.Revision, r.key.mailbox = r.key.message, r.key.message, box.ID
		r.Mailbox = box.Ref.String()
		r.Attempt = attempts + 1
		r.fresh = delivered == 0
		found = append(found, r)
	}
	return found, rows.Err()
}
