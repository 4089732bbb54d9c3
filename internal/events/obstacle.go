package events

import (
	"cmp"
	"encoding/json"
	"strings"

	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

// An Obstacle is what an event says of a blocker of the caller.
type Obstacle struct {
	Over       bool   // the blocker is resolved; false = it begins
	Task       string // that the blocker stops; empty = none
	Reason     string // of a blocker that begins
	Severity   string // low, medium, high or critical
	Awaited    string // an agent, perhaps not registered; empty = none
	ID         string // of a blocker that is resolved, if the event names it
	Resolution string
}

// Blockers makes and resolves blockers.
type Blockers interface {
	// Report raises or resolves a blocker in the name of the caller, in the transaction of the event
	// that says so, and returns the blocker's id. It sends its own events to no channels: the event
	// goes there. Errors: fault.NotFound and fault.Precondition if the caller has no such blocker, or
	// more than one.
	Report(tx *store.Tx, c identity.Caller, o Obstacle) (id string, err error)
}

// The canonical types of the events that begin and end a blocker.
const (
	blockerBegins = "blocker_encountered"
	blockerEnds   = "blocker_resolved"
)

const maxResolution = 4 << 10 // bytes

// obstacle reads what an event says of a blocker. The names of fields in details are those that
// agents use, and those of the type's schema in the catalog. A field of another form counts as absent.
func obstacle(c *validate.Check, e *Entry) *Obstacle {
	if e.Type != blockerBegins && e.Type != blockerEnds {
		c.Fail("blocker", "is set; only events of the types %s and %s raise or resolve a blocker", blockerBegins, blockerEnds)
		return nil
	}
	details := map[string]any{}
	if e.Details != "" {
		_ = json.Unmarshal([]byte(e.Details), &details) // the caller has checked it
	}
	text := func(path ...string) string {
		var at any = details
		for _, name := range path {
			object, _ := at.(map[string]any)
			at = object[name]
		}
		s, _ := at.(string)
		return strings.TrimSpace(s)
	}
	o := &Obstacle{
		Over: e.Type == blockerEnds, Task: cmp.Or(e.TaskID, text("task_id")), ID: text("blocker_id"), Resolution: text("resolution"),
		Reason:   cmp.Or(text("description"), text("reason"), strings.TrimSpace(e.Summary)),
		Severity: strings.ToLower(text("severity")),
		Awaited:  cmp.Or(text("dependency", "responsible_agent"), text("awaited_agent"), text("awaited", "agent"), text("awaited")),
	}
	switch o.Severity {
	case "low", "medium", "high", "critical":
	default:
		o.Severity = map[Severity]string{Error: "high", Critical: "critical"}[e.Severity]
	}
	c.Line("details.task_id", o.Task, validate.MaxID)
	if o.Over {
		c.Text("details.resolution", o.Resolution, maxResolution)
		return o
	}
	c.Text("details.description", o.Reason, maxDetails)
	if o.Reason == "" {
		c.Fail("details", "has no description, and the event no summary: say what stops the work")
	}
	return o
}
