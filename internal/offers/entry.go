package offers

import (
	"strconv"
	"strings"

	"brokerd/internal/events"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// mostRelated is how many messages an event about offers relates to. Its details name all of them.
const mostRelated = 100

// An entry is an event about offers to an agent, in one way to one session of its coding agent.
type entry struct {
	kind     string
	verb     string // of the summary
	severity events.Severity
	agent    string
	way      mail.Way
	harness  string
	why      string // they are returned
	messages []int64
}

// append appends the event to the log and returns its revision.
func (o *Offers) append(tx *store.Tx, a mail.Actor, e entry) (int64, error) {
	event := a.Event(e.kind)
	event.Severity = e.severity
	event.Summary = finding.Count(len(e.messages), "message") + " " + e.verb + " " + e.agent + " (" + e.way.String() + ")"
	var details strings.Builder
	details.WriteString(`{"agent":` + events.Quote(e.agent) + `,"way":` + events.Quote(e.way.String()) +
		`,"harness":` + events.Quote(e.harness))
	if e.why != "" {
		event.Summary += ": " + e.why
		details.WriteString(`,"why":` + events.Quote(e.why))
	}
	details.WriteString(`,"messages":[`)
	for i, m := range e.messages {
		if i > 0 {
			details.WriteByte(',')
		}
		revision := strconv.FormatInt(m, 10)
		details.WriteString(revision)
		if i < mostRelated {
			event.Related = append(event.Related, revision)
		}
	}
	details.WriteString("]}")
	event.Details = details.String()
	return o.log.Append(tx, event)
}
