package table

import (
	"strings"
	"unicode"
)

// The colours of states, as codes of ANSI terminals. A later one is worse.
var colors = []string{"32", "33", "31"} // green, yellow, red

// states are the words that have a colour: 0 is good, 1 asks for attention, 2 is bad.
var states = map[string]int{
	"ok": 0, "starting": 0, "busy": 0, "idle": 0, "acked": 0, "approved": 0, "finished": 0, "done": 0,
	"warning": 1, "late": 1, "degraded": 1, "halted": 1, "blocked": 1, "delayed": 1, "contested": 1, "revise": 1, "escalated": 1, "overdue": 1,
	"error": 2, "critical": 2, "failed": 2, "dead": 2, "rejected": 2, "damaged": 2, "expired": 2,
}

// Paint adds the colour of the worst state that a text names.
func Paint(s string) string {
	worst := -1
	for word := range strings.FieldsFuncSeq(strings.ToLower(s), func(r rune) bool { return !unicode.IsLetter(r) }) {
		if level, ok := states[word]; ok {
			worst = max(worst, level)
		}
	}
	if worst < 0 {
		return s
	}
	return "\x1b[" + colors[worst] + "m" + s + "\x1b[0m"
}
