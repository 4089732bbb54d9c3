package importer

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// The kinds of rows.
const (
	kindAgents        = "agents"
	kindSubscriptions = "subscriptions"
	kindMessages      = "messages"
	kindDeadLetters   = "dead_letters"
	kindFinished      = "finished"
)

// namedReasons is how many skipped rows a report names.
const namedReasons = 10

// A Report says what an import has done, or would do.
type Report struct {
	File          string     `json:"file"`
	Session       string     `json:"session"`
	DryRun        bool       `json:"dry_run"`
	Kinds         []*Count   `json:"kinds"`
	Skipped       []Skipped  `json:"skipped"` // the first of those that were not sent, or not to all
	Artifacts     []Artifact `json:"artifacts"`
	Seconds       float64    `json:"seconds"`
	Warnings      []string   `json:"warnings"`
	moreThanNamed int
}

// A Count counts the rows of a kind. Each row that was read counts in exactly one other field.
type Count struct {
	Kind          string `json:"kind"`
	Read          int    `json:"read"`
	Imported      int    `json:"imported"`       // in this run
	AlreadyThere  int    `json:"already_there"`  // imported earlier, or registered by another client
	Expired       int    `json:"expired"`        // kept in the history
	NoSubscribers int    `json:"no_subscribers"` // sent to a channel that no other agent subscribes to
	Kept          int    `json:"kept"`           // in the history only
	Skipped       int    `json:"skipped"`        // kept among the skipped rows
}

// Skipped says why a row was not imported.
type Skipped struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// An Artifact has rows that were not sent, one JSON object per line.
type Artifact struct {
	Name    string `json:"name"`
	Version int64  `json:"version"` // 0 in a dry run
	Rows    int    `json:"rows"`
}

// count returns the counts of a kind.
func (r *Report) count(kind string) *Count {
	for _, c := range r.Kinds {
		if c.Kind == kind {
			return c
		}
	}
	c := &Count{Kind: kind}
	r.Kinds = append(r.Kinds, c)
	return c
}

// skip names a skipped row, if it is one of the first.
func (r *Report) skip(kind, id, reason string) {
	if len(r.Skipped) < namedReasons {
		r.Skipped = append(r.Skipped, Skipped{kind, clip(id, 128), reason})
	} else {
		r.moreThanNamed++
	}
}

// Write writes the report for people.
func (r *Report) Write(w io.Writer) {
	verb, column := "imported", "imported"
	if r.DryRun {
		verb, column = "would import", "to import"
	}
	fmt.Fprintf(w, "%s %s into the session %s in %v\n\n", verb, r.File, r.Session,
		time.Duration(r.Seconds*float64(time.Second)).Round(10*time.Millisecond))
	line := "%-14s %9v %9v %13v %8v %14v %7v %8v\n"
	fmt.Fprintf(w, line, "", "read", column, "already there", "expired", "no subscribers", "history", "skipped")
	for _, c := range r.Kinds {
		fmt.Fprintf(w, line, strings.ReplaceAll(c.Kind, "_", " "), c.Read, c.Imported, c.AlreadyThere, c.Expired,
			c.NoSubscribers, c.Kept, c.Skipped)
	}
	if len(r.Skipped) > 0 {
		fmt.Fprintln(w, "\nnot sent, or not to all:")
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "  %s %q: %s\n", strings.ReplaceAll(s.Kind, "_", " "), s.ID, s.Reason)
	}
	if r.moreThanNamed > 0 {
		fmt.Fprintf(w, "  and %d more\n", r.moreThanNamed)
	}
	if len(r.Artifacts) > 0 {
		fmt.Fprintln(w, "\nkept, not delivered again:")
	}
	for _, a := range r.Artifacts {
		fmt.Fprintf(w, "  %s  %d rows\n", a.Name, a.Rows)
	}
	for _, warning := range r.Warnings {
		if r.DryRun { // another import has logged it before it began
			fmt.Fprintln(w, "\nwarning:", warning)
		}
	}
	fmt.Fprintln(w, "\nnext:")
	if r.DryRun {
		fmt.Fprintln(w, "  nothing has been changed: run the command without --dry-run")
		return
	}
	fmt.Fprintf(w, `  1. stop the agents that use %s; if they have written to it since, run this command again
  2. connect each agent with its old name, within 24 h: brokerctl --session %s agent register NAME, or docs/join.md
  3. an agent takes its messages with: brokerctl --session %[2]s --agent NAME claim
`, r.File, r.Session)
}
