package table

import (
	"fmt"
	"strings"
)

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
