package broker

import (
	"encoding/json"
	"strconv"

	"brokerd/internal/events"
	"brokerd/internal/msgtype"
)

// maxDoubtful is how many messages one event about types and payloads names.
const maxDoubtful = 16

// doubtful is a message that was sent although its type is unknown or its payload does not fit.
type doubtful struct {
	revision int64
	doubt    *msgtype.Doubt
}

// reportDoubts appends at most one event for all messages of unknown types that one function sends,
// and one for all invalid payloads.
func (s *sending) reportDoubts() error {
	var unknown, invalid []doubtful
	for _, d := range s.doubtful {
		if d.doubt.Unknown {
			unknown = append(unknown, d)
		} else {
			invalid = append(invalid, d)
		}
	}
	if err := s.reportDoubt("message.type_unknown", "of an unknown type", unknown); err != nil {
		return err
	}
	return s.reportDoubt("message.payload_invalid", "with a payload that does not fit its type", invalid)
}

func (s *sending) reportDoubt(kind, what string, list []doubtful) error {
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
	entry := s.actor.Event(kind)
	entry.Severity = events.Warning
	for _, d := range list[:min(len(list), maxDoubtful)] {
		m := message{Revision: d.revision, Type: d.doubt.Type}
		for _, f := range d.doubt.Faults {
			m.Faults = append(m.Faults, fault(f))
		}
		details.Messages = append(details.Messages, m)
		entry.Related = append(entry.Related, strconv.FormatInt(d.revision, 10))
	}
	entry.Summary = counted(len(list), "message") + " " + what + ": " + list[0].doubt.Type
	text, err := json.Marshal(details)
	if err != nil {
		return err
	}
	entry.Details = string(text)
	_, err = s.log.Append(s.tx, entry)
	return err
}
