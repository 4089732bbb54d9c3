package archive

import (
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
)

// A Record is a message with all its deliveries. Times are Unix nanoseconds; 0 means that
// there is none.
type Record struct {
	Revision   int64
	Session    int64
	CreatedAt  int64
	ExpiresAt  int64
	ID         msgid.ID
	Sender     string
	SenderRole string
	Thread     string // empty = its own id
	Content    []byte
	Deliveries []RecordedDelivery
	Follows    bool // no other message lies between the record before it and this one
}

// A RecordedDelivery is a delivery of a Record.
type RecordedDelivery struct {
	Mailbox, Holder, Consumer                         string
	State, Arrival, Claims, Attempts, MaxAttempts     int64
	ClaimedAt, DeliveredAt, ReadAt, FinishedAt, DueAt int64
	History                                           []mail.Attempt
	Offers                                            []mail.Offer
}
