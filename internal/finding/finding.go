// Package finding is the form in which features report what is stuck, and why: sentences for
// people, and the calls that free it. The features know their tables and rules. The package
// admin orders and limits the findings, and sends them.
package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"brokerd/internal/calls"
)

// A Severity says how bad something is. The numbers are those of the API.
type Severity int

// The severities.
const (
	Info    Severity = iota + 1 // as it should be
	Warning                     // slow, or at risk
	Error                       // stuck until an agent or an operator acts
)

// A Finding is one fact, with its reasons.
type Finding struct {
	Severity Severity
	Subject  string       // such as agent builder-1, message 4711
	Summary  string       // the fact, in one sentence without a full stop
	Reasons  []string     // why, one sentence each
	Since    time.Time    // zero = unknown
	Calls    []calls.Call // that free it or show more; the best first
}

// A Kind says what kind of thing is to be explained.
type Kind int

// The kinds.
const (
	Everything Kind = iota // the worst problems of the session
	Message                // by id or revision
	Lock                   // by path, fence or ticket
	Token                  // by TYPE/SCOPE
	Agent
	Role
	Task
	Decision
	Blocker
	Handoff
	Vote
	Channel
)

// String returns the noun of the kind.
func (k Kind) String() string {
	return [...]string{
		"everything", "message", "lock", "token", "agent", "role", "task", "decision", "blocker", "handoff", "vote", "channel",
	}[k]
}

// A Question is what a caller wants to have explained, and when.
type Question struct {
	Session     int64 // row id
	SessionName string
	Asker       string // the agent that asks; empty for an operator
	AskerRole   string
	Kind        Kind
	Name        string // as the caller wrote it; empty for Everything
	Now         time.Time
}

// Mine reports whether the caller may do what only an operator and one agent, such as a message's
// sender, may do.
func (q *Question) Mine(agent string) bool { return q.Asker == "" || q.Asker == agent }

// Sort puts the worst first, and among equals the oldest.
func Sort(all []Finding) {
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), a.Since.Compare(b.Since))
	})
}

// When says a time exactly and how far away it is: "14:03:05 UTC (2m ago)", "14:03:05 UTC (in
// 30s)".
func (q *Question) When(t time.Time) string {
	d := q.Now.Sub(t)
	layout := "15:04:05 UTC"
	if d.Abs() >= 12*time.Hour {
		layout = "2006-01-02 15:04:05 UTC"
	}
	away := Rough(d) + " ago"
	switch {
	case d.Abs() < time.Second:
		away = "now"
	case d < 0:
		away = "in " + Rough(-d)
	}
	return t.UTC().Format(layout) + " (" + away + ")"
}

// After says from when on a finding is a warning: " (a warning after 15m)".
func After(d time.Duration) string { return " (a warning after " + Rough(d) + ")" }

// Exact writes a duration in full, without the units that are 0: 90s is 1m30s, and 24h is 24h.
func Exact(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// Rough says a duration in its largest unit.
func Rough(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Count says "1 message", "2 messages", "2 mailboxes".
func Count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "x") {
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// mostNamed is how many names one sentence lists.
const mostNamed = 10

// Names lists names, and how many more there are.
func Names(names []string) string {
	shown := names[:min(len(names), mostNamed)]
	switch more := len(names) - len(shown); {
	case more > 0:
		return strings.Join(shown, ", ") + fmt.Sprintf(" and %d more", more)
	case len(shown) > 1:
		last := len(shown) - 1
		return strings.Join(shown[:last], ", ") + " and " + shown[last]
	}
	return strings.Join(shown, "")
}

// Clip shortens a text that others wrote to one line of at most 200 bytes.
func Clip(s string) string {
	const most = 200
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-len("…")], "") + "…"
	}
	return s
}
