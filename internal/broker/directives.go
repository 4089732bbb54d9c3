package broker

import (
	"math"
	"time"

	"brokerd/internal/store"
)

// The types of messages that are directives: orders to agents from those who direct the session.
const (
	HaltType      = "halt"
	ResumeType    = "resume"
	nudgeType     = "nudge"
	terminateType = "terminate"
	shutdownType  = "shutdown_request"
)

const (
	// DirectivePriority is the priority of every directive.
	DirectivePriority = 10
	// DirectiveRank is above the rank of every directive, and below the rank of every other delivery.
	DirectiveRank = math.MinInt64 / 2
)

// IsDirective reports whether messages of a type are directives.
func IsDirective(kind string) bool {
	switch kind {
	case nudgeType, HaltType, ResumeType, terminateType, shutdownType:
		return true
	}
	return false
}

// directRank is the rank of a directive. Directives come before all other deliveries, in the order of sending.
func directRank(sent time.Time) int64 { return math.MinInt64 + sent.UnixNano() }

// directive reports whether a delivery is of a directive.
func (p place) directive() bool { return p.rank < DirectiveRank }

// Directives knows who may send directives, and what a directive does beside being delivered.
type Directives interface {
	// MayDirect refuses a directive from a sender who may not send one.
	MayDirect(from *Actor, kind string) error
	// Direct applies a directive that is being sent to those who receive it.
	Direct(tx *store.Tx, from *Actor, d *Draft, message int64, to []Directed) error
}

// A Directed is an agent to whom a directive is sent.
type Directed struct {
	Mailbox int64
	Name    string
	Ended   int64 // Direct sets it: how many deliveries it has ended that waited in the mailbox
}

// direct applies a directive to its recipients.
func (s *sending) direct(d *Draft, message int64, to []*room) error {
	directed := make([]Directed, len(to))
	for i, r := range to {
		directed[i] = Directed{Mailbox: r.id, Name: r.name}
	}
	err := s.directives.Direct(s.tx, &s.actor, d, message, directed)
	for i, r := range to {
		r.waiting -= directed[i].Ended
	}
	return err
}
