package events

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"brokerd/internal/store"
)

// announced are the types of the broker's own events that go to the channels of events. Those of which there is one
// for every message, or more, never do.
var announced = map[string]bool{
	"agent.registered":      true,
	"agent.deregistered":    true,
	"agent.degraded":        true,
	"agent.failed":          true,
	"agent.revived":         true,
	"agent.stopped":         true,
	"agent.recovered":       true,
	"agent.halted":          true,
	"agent.resumed":         true,
	"artifact_shared":       true,
	"blocker.acknowledged":  true,
	"blocker.encountered":   true,
	"blocker.escalated":     true,
	"blocker.reopened":      true,
	"blocker.resolved":      true,
	"context_updated":       true,
	"decision.cancelled":    true,
	"decision.decided":      true,
	"decision.escalated":    true,
	"decision.opened":       true,
	"decision.resubmitted":  true,
	"handoff.accepted":      true,
	"handoff.cancelled":     true,
	"handoff.created":       true,
	"handoff.rejected":      true,
	"message.dead":          true,
	"message.overdue":       true,
	"session.configured":    true,
	"system.disk_low":       true,
	"system.disk_recovered": true,
	"task.blocked":          true,
	"task.cancelled":        true,
	"task.completed":        true,
	"task.failed":           true,
	"task.unblocked":        true,
	"thread.resolved":       true,
	"vote.closed":           true,
	"vote.opened":           true,
}

// reserved are the first words of types with a dot that only the broker itself uses.
var reserved = map[string]bool{
	"agent": true, "artifact": true, "backup": true, "blocker": true, "broker": true, "channel": true, "credential": true,
	"data": true, "decision": true, "handoff": true, "lock": true, "message": true, "producer": true, "session": true,
	"state": true, "system": true, "task": true, "thread": true,
	"ticket": true, "token": true, "vote": true,
}

var typeForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,127}$`)

// IsType reports whether s has the form of an event's type, in any spelling.
func IsType(s string) bool { return typeForm.MatchString(s) }

// Reserved reports whether a type is one of the broker's own: it has a dot behind a reserved first
// word. Clients may not publish it.
func Reserved(eventType string) bool {
	first, _, dotted := strings.Cut(eventType, ".")
	return dotted && reserved[first]
}

// Announced reports whether events of one of the broker's own types go to the channels of events.
func Announced(eventType string) bool { return announced[eventType] }

// AnnouncedTypes returns the broker's own types whose events go to the channels of events, sorted.
func AnnouncedTypes() []string { return slices.Sorted(maps.Keys(announced)) }

// OnAnnounced registers what carries events to the channels of events. It is called before the log
// is used, once. fn runs in the transaction of each event that agents publish or whose type is
// Announced, right after it was appended; its error is that of the change. It returns the number of
// mailboxes that accepted the event. It may append events that are not announced themselves.
func (l *Log) OnAnnounced(fn func(tx *store.Tx, e Event) (int, error)) { l.announce = fn }
