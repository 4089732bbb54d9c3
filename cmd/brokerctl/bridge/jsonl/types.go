package jsonl

import (
	"encoding/json"
	"strings"
	"unicode"

	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

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
	name := mailfile.TypeName(m)
	for _, known := range lineTypes() {
		if snake(known) == m.GetType() {
			return mailfile.Quote(known)
		}
	}
	switch {
	case m.GetType() == noType:
	case fromFolder:
		return mailfile.Quote(name)
	default:
		metadata[typeKey] = name
	}
	return mailfile.Quote(lineTypes()[0])
}

// takeLineType reads the Type of a line: a name, or a number of lineTypes. The metadata of a Text may name the type.
func takeLineType(f mailfile.Fields, m *pb.Message, metadata map[string]string) error {
	var number int
	if json.Unmarshal(f["Type"], &number) == nil && f["Type"] != nil && string(f["Type"]) != "null" {
		types := lineTypes()
		if number < 0 || number >= len(types) {
			last := len(types) - 1
			return mailfile.Refusalf("Type is %d; a number must be from 0 (%s) to %d (%s)",
				number, types[0], last, types[last])
		}
		f.Set("Type", types[number])
	}
	if err := f.Take("Type", &m.Type); err != nil {
		return err
	}
	if m.Type == lineTypes()[0] && metadata[typeKey] != "" {
		m.Type = metadata[typeKey]
		delete(metadata, typeKey)
	}
	return nil
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
