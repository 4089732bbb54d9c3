package bridge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	pb "brokerd/gen/brokerd/v1"
)

// typeName returns the type of a message as its sender wrote it.
func typeName(m *pb.Message) string { return cmp.Or(m.GetTypeAsSent(), m.GetType()) }

// noType is the type of a message without one.
const noType = "message"

// typeKey is the key of the metadata of a line with the type of a message that none of lineTypes is.
const typeKey = "type"

// lineTypes are the types of the format jsonl, in the order of the numbers that its writers may use instead. Its
// readers fail on other types.
func lineTypes() []string {
	return []string{"Text", "StatusUpdate", "ShutdownRequest", "ShutdownResponse", "PlanSubmission", "PlanApproval",
		"TaskAssignment", "Broadcast"}
}

// lineType returns the Type of the line of a message. A type that readers may not know goes to the metadata, unless
// the message is a line of the folder.
func lineType(m *pb.Message, metadata map[string]string, fromFolder bool) json.RawMessage {
	name := typeName(m)
	for _, known := range lineTypes() {
		if snake(known) == m.GetType() {
			return quote(known)
		}
	}
	switch {
	case m.GetType() == noType:
	case fromFolder:
		return quote(name)
	default:
		metadata[typeKey] = name
	}
	return quote(lineTypes()[0])
}

// takeLineType reads the Type of a line: a name, or a number of lineTypes. The metadata of a Text may name the type.
func (f fields) takeLineType(m *pb.Message, metadata map[string]string) error {
	var number int
	if json.Unmarshal(f["Type"], &number) == nil && f["Type"] != nil && string(f["Type"]) != "null" {
		types := lineTypes()
		if number < 0 || number >= len(types) {
			last := len(types) - 1
			return refusal(fmt.Sprintf("Type is %d; a number must be from 0 (%s) to %d (%s)", number, types[0], last, types[last]))
		}
		f.set("Type", types[number])
	}
	if err := f.take("Type", &m.Type); err != nil {
		return err
	}
	if m.Type == lineTypes()[0] && metadata[typeKey] != "" {
		m.Type = metadata[typeKey]
		delete(metadata, typeKey)
	}
	return nil
}

// eventName returns the name that files of agent-messages have for a type of events: as its publisher wrote it if that
// is another spelling than the broker's, and otherwise such as TaskCompleted for task.completed.
func eventName(kind, published string) string {
	if published != "" && published != kind {
		return published
	}
	if kind == "task_complete" { // the broker's name for it
		kind = "task_completed"
	}
	var name strings.Builder
	for _, word := range strings.FieldsFunc(kind, func(r rune) bool { return r == '_' || r == '.' || r == '-' }) {
		for i, r := range word {
			if i == 0 {
				r = unicode.ToUpper(r)
			}
			name.WriteRune(r)
		}
	}
	return name.String()
}

// snake returns a name in PascalCase as the broker stores it: task_assignment for TaskAssignment.
func snake(name string) string {
	var folded strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			folded.WriteByte('_')
		}
		folded.WriteRune(unicode.ToLower(r))
	}
	return folded.String()
}

// quote returns a text as JSON.
func quote(text string) json.RawMessage {
	quoted, _ := json.Marshal(text) // of a string, there is no error
	return quoted
}
