package handoffs

import (
	"fmt"
	"strings"
	"time"
)

// Markdown renders a handoff. Sections without content are left out.
func Markdown(h *Handoff) string {
	var b strings.Builder
	title := h.Title
	if h.ID != 0 {
		title = "Handoff " + h.Name() + ": " + title
	}
	fmt.Fprintf(&b, "# %s\n\n", title)
	fact := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "- %s: %s\n", name, value)
		}
	}
	fact("State", h.State.String())
	fact("From", h.From)
	fact("To", h.To())
	fact("Task", h.Task)
	fact("Created", at(h.CreatedAt))
	if h.State != Pending {
		name := h.State.String()
		fact(strings.ToUpper(name[:1])+name[1:], at(h.SettledAt)+" by "+h.SettledBy)
		fact("Notes", strings.Join(strings.Fields(h.Notes), " "))
	}
	text := func(title, s string) {
		if s = strings.TrimSpace(s); s != "" {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n", title, s)
		}
	}
	list := func(title, mark string, items []string) {
		if len(items) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		for i, item := range items {
			lead := mark
			if mark == "1." {
				lead = fmt.Sprintf("%d.", i+1)
			}
			fmt.Fprintf(&b, "%s %s\n", lead, indent(item, len(lead)+1))
		}
	}
	text("Background", h.Content.Background)
	text("Work done", h.Content.WorkDone)
	list("Artifacts", "-", each(h.Content.Artifacts, func(s string) string { return "`" + s + "`" }))
	list("Context", "-", each(h.Content.Links, Link.markdown))
	list("Next steps", "1.", h.Content.NextSteps)
	list("Known issues", "-", h.Content.KnownIssues)
	list("Open questions", "-", h.Content.OpenQuestions)
	list("Acceptance checklist", "-", each(h.Checklist, Item.markdown))
	list("Transferred", "-", each(h.Grants, Grant.markdown))
	return b.String()
}

func (l Link) markdown() string {
	target := l.Kind.String() + " `" + l.Target + "`"
	if l.Kind == URL {
		target = "<" + l.Target + ">"
	}
	if l.Title != "" {
		target += ": " + l.Title
	}
	return target
}

func (i Item) markdown() string {
	if i.CheckedBy == "" {
		return "[ ] " + i.Text
	}
	return "[x] " + i.Text + " (" + i.CheckedBy + ", " + at(i.CheckedAt) + ")"
}

func (g Grant) markdown() string {
	s := fmt.Sprintf("%s `%s`, fence %d", g.Kind, g.Name, g.Fence)
	switch {
	case g.Lost:
		s += ", lost before the handoff was accepted"
	case g.New != 0:
		s += fmt.Sprintf(", now fence %d", g.New)
	}
	return s
}

// indent lets the further lines of an item begin below its first one.
func indent(s string, by int) string {
	return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n"+strings.Repeat(" ", by))
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func each[T any](list []T, as func(T) string) []string {
	out := make([]string, len(list))
	for i, item := range list {
		out[i] = as(item)
	}
	return out
}
