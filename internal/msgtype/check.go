package msgtype

import (
	"encoding/json"
	"fmt"
	"strings"

	"brokerd/internal/fault"
)

// A Policy says what the broker does with a message of an unknown type, or with an invalid payload.
// The numbers are those of the API.
type Policy int

// The policies. The zero value counts as Warn.
const (
	Allow Policy = iota + 1
	Warn
	Refuse
)

// String returns the policy as events spell it.
func (p Policy) String() string { return [...]string{"", "allow", "warn", "refuse"}[p] }

// Rules are the policies of a session.
type Rules struct {
	Unknown Policy // for types that the session does not know
	Invalid Policy // for payloads that do not fit the schema of their type
}

// A Doubt is what a set has against a message. A nil Doubt is nothing.
type Doubt struct {
	Type      string  // as stored
	Unknown   bool    // no set has the type
	Hint      string  // names that may be meant, as a question; empty = none
	Faults    []Fault // of the payload, at most maxFaults
	Unchecked bool    // the schema of the type cannot be applied; Faults says why
}

// Check returns the name under which the broker stores a type, and what is against a message of
// this type with this payload. A message without a payload, or with a reference to an artifact that
// has the payload, fits every type. The payload is valid JSON.
func (s *Set) Check(spelling, payload string) (string, *Doubt) {
	name, t := s.Lookup(spelling)
	if t == nil {
		return name, &Doubt{Type: name, Unknown: true, Hint: s.hint(name)}
	}
	if payload == "" || t.Schema == "" {
		return name, nil
	}
	faults, err := t.Validate(payload)
	switch {
	case err == nil && len(faults) == 0, isReference(payload):
		return name, nil
	case err != nil:
		faults = []Fault{{"", clip(fmt.Sprintf("the schema of the type %v", err))}}
	}
	return name, &Doubt{Type: name, Faults: faults, Unchecked: err != nil}
}

// isReference reports whether a payload is a reference to an artifact that has the payload itself:
// an object with the name, hash and size of the artifact and nothing else.
func isReference(payload string) bool {
	var r struct {
		Artifact *string `json:"artifact"`
		SHA256   *string `json:"sha256"`
		Size     *int64  `json:"size"`
	}
	d := json.NewDecoder(strings.NewReader(payload))
	d.DisallowUnknownFields()
	return d.Decode(&r) == nil && r.Artifact != nil && r.SHA256 != nil && r.Size != nil
}

// Judge applies the rules of a session: it returns the warnings for the sender, or the fault for
// which the broker refuses the message: fault.Invalid, TYPE_UNKNOWN or PAYLOAD_INVALID. It never
// refuses a payload because the schema of its type cannot be applied.
func (d *Doubt) Judge(r Rules) (warnings []string, err error) {
	switch {
	case d == nil:
		return nil, nil
	case d.Unknown:
		return judge(r.Unknown, "TYPE_UNKNOWN", []fault.Violation{{Field: "type", Description: d.unknown()}}, d.unknown())
	case d.Unchecked:
		return judge(min(r.Invalid, Warn), "", nil,
			fmt.Sprintf("the payload was not checked: %s; register the type %s again", d.Faults[0].Problem, d.Type))
	}
	violations := make([]fault.Violation, len(d.Faults))
	for i, f := range d.Faults {
		violations[i] = fault.Violation{Field: "payload", Description: "at " + f.String()}
	}
	return judge(r.Invalid, "PAYLOAD_INVALID", violations,
		fmt.Sprintf("the payload does not fit the type %s: at %s", d.Type, Join(d.Faults)))
}

func judge(p Policy, reason string, violations []fault.Violation, warning string) ([]string, error) {
	switch p {
	case Allow:
		return nil, nil
	case Refuse:
		err := fault.Fields(violations)
		err.Reason = reason
		return nil, err
	default:
		return []string{warning}, nil
	}
}

func (d *Doubt) unknown() string {
	text := "the type " + d.Type + " is unknown"
	if d.Hint != "" {
		text += ": " + d.Hint
	}
	return text
}

// Join lists faults in one line.
func Join(faults []Fault) string {
	texts := make([]string, len(faults))
	for i, f := range faults {
		texts[i] = f.String()
	}
	return strings.Join(texts, "; ")
}
