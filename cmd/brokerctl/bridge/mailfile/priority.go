package mailfile

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// priorities are the words for priorities that files may have.
var priorities = map[string]int32{"low": 3, "normal": 5, "medium": 5, "high": 7, "critical": 10, "urgent": 10}

// PriorityNumber reads a priority: a word, or a number from 1 to 10.
func PriorityNumber(text string) (int32, error) {
	if n := priorities[strings.ToLower(text)]; n > 0 {
		return n, nil
	}
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= 10 {
		return int32(n), nil
	}
	return 0, Refusalf("priority is %q; it must be low, normal, high, critical or a number from 1 to 10",
		OneLine(text, 60))
}

// PriorityWord returns the word for a priority.
func PriorityWord(n int32) string {
	switch {
	case n >= 10:
		return "critical"
	case n >= 7:
		return "high"
	case n >= 5:
		return "normal"
	}
	return "low"
}

// TakePriority reads a priority. A word for which another one is written is kept as a field.
func (f Fields) TakePriority(raw json.RawMessage, m *pb.Message) error {
	text := string(bytes.Trim(raw, `"`))
	if text == "" || text == "null" {
		return nil
	}
	var err error
	if m.Priority, err = PriorityNumber(text); err == nil && PriorityWord(m.Priority) != text {
		f["priority"] = raw
	}
	return err
}
