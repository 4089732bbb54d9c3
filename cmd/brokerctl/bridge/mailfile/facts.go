package mailfile

import (
	"encoding/json"
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// Facts returns the strings, numbers and booleans that a message has in its labels, fields and payload.
func Facts(m *pb.Message) map[string]string {
	facts, f, payload := Kept(m)
	add := func(from Fields) {
		for name, value := range from {
			if text, ok := JSONString(value); ok {
				facts[name] = text
			} else if len(value) > 0 && !strings.ContainsRune("{[n", rune(value[0])) {
				facts[name] = string(value)
			}
		}
	}
	add(f)
	for _, object := range []string{string(f["payload"]), payload} {
		var inner Fields
		if json.Unmarshal([]byte(object), &inner) == nil {
			add(inner)
		}
	}
	return facts
}
