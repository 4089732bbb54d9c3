package mail

import (
	"math"
	"time"
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

// DirectRank is the rank of a directive. Directives come before all other deliveries, in the order of sending.
func DirectRank(sent time.Time) int64 { return math.MinInt64 + sent.UnixNano() }

// Rank returns the place of a delivery in its mailbox: the smallest is delivered first. It is a constant, since all
// items age alike.
func Rank(ageing time.Duration, priority int, sent time.Time) int64 {
	if ageing == 0 {
		return int64(10 - priority)
	}
	return sent.UnixNano() - int64(priority)*int64(ageing)
}
