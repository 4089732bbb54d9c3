package admission

import (
	"encoding/json"
	"strconv"

	"brokerd/internal/events"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/router"
	"brokerd/internal/store"
)

// maxDoubtful is how many messages one event about types and payloads names.
const maxDoubtful = 16

// Report implements router.Admission. It appends at most one event for all messages of unknown types that one function
// sends, and one for all invalid payloads.
func (c *Control) Report(tx *store.Tx, from *mail.Actor, doubtful []router.Doubtful) error {
	var unknown, invalid []router.Doubtful
	for _, d := range doubtful {
		if d.Doubt.Unknown {
			unknown = append(unknown, d)
		} else {
			invalid = append(invalid, d)
		}
	}
	if err := c.report(tx, from, "message.type_unknown", "of an unknown type", unknown); err != nil {
		return err
	}
	return c.report(tx, from, "message.payload_invalid", "with a payload that does not fit its type", invalid)
}

// report appends an event of one type.
func (c *Control) report(tx *store.Tx, from *mail.Actor, kind, what string, list []router.Doubtful) error {
	if len(list) == 0 {
		return nil
	}
	type fault struct {
		Pointer string `json:"pointer"`
		Problem string `json:"problem"`
	}
	type message struct {
		Revision int64   `json:"revision"`
		Type     string  `json:"type"`
		Faults   []fault `json:"faults,omitempty"`
	}
	var details struct {
		Messages []message `json:"messages"`
		Count    int       `json:"count"`
	}
	details.Count = len(list)
	entry := from.Event(kind)
	entry.Severity = events.Warning
	for _, d := range list[:min(len(list), maxDoubtful)] {
		m := message{Revision: d.Revision, Type: d.Doubt.Type}
		for _, f := range d.Doubt.Faults {
			m.Faults = append(m.Faults, fault(f))
		}
		details.Messages = append(details.Messages, m)
		entry.Related = append(entry.Related, strconv.FormatInt(d.Revision, 10))
	}
	entry.Summary = finding.Count(len(list), "message") + " " + what + ": " + list[0].Doubt.Type
	text, err := json.Marshal(details)
	if err != nil {
		return err
	}
	entry.Details = string(text)
	_, err = c.log.Append(tx, entry)
	return err
}
