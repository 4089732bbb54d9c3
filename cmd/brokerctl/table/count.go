package table

import (
	"fmt"
	"strings"
)

// Count writes a number with its noun, which it puts into the plural unless the number is 1.
func Count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	switch stem, y := strings.CutSuffix(noun, "y"); {
	case y && !strings.HasSuffix(stem, "e"):
		noun = stem + "ies"
	case strings.HasSuffix(noun, "x"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Absent says in brackets how many agents are late, failed and stopped; it is empty if none is.
func Absent(late, failed, stopped int32) string {
	var parts []string
	for _, of := range []struct {
		n     int32
		state string
	}{{late, "late"}, {failed, "failed"}, {stopped, "stopped"}} {
		if of.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", of.n, of.state))
		}
	}
	if parts == nil {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}
