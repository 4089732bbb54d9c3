package msgtype

import (
	"slices"
	"strings"
)

// EventTypes returns the event types that a spelling may stand for: the canonical name and the
// aliases of its type, each also with a dot behind its first word, as in the broker's own types. So
// TaskCompleted finds task_complete, which agents publish, and task.completed. A spelling without
// upper case is part of the answer as it is.
func EventTypes(spelling string) []string {
	folded := Fold(spelling)
	names := []string{folded}
	if t := builtin().names[folded]; t != nil {
		names = append(append(names, t.Name), t.Aliases...)
	}
	if spelling == strings.ToLower(spelling) {
		names = append(names, spelling)
	}
	for _, name := range names {
		names = append(names, strings.Replace(name, "_", ".", 1))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
