package handoffs

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/work"
)

// markdown renders a handoff. Sections without content are left out.
func markdown(h *pb.Handoff) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Handoff %s: %s\n\n", h.Id, h.Title)
	fact := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "- %s: %s\n", name, value)
		}
	}
	state := work.Word(h.State)
	fact("State", state)
	fact("From", h.From)
	fact("To", to(h))
	fact("Task", h.TaskId)
	fact("Created", at(h.CreatedAt))
	if h.State != pending {
		fact(strings.ToUpper(state[:1])+state[1:], at(h.SettledAt)+" by "+h.SettledBy)
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
	text("Background", h.Content.GetBackground())
	text("Work done", h.Content.GetWorkDone())
	list("Artifacts", "-", each(h.Content.GetArtifacts(), func(s string) string { return "`" + s + "`" }))
	list("Context", "-", each(h.Content.GetContextLinks(), linkMarkdown))
	list("Next steps", "1.", h.Content.GetNextSteps())
	list("Known issues", "-", h.Content.GetKnownIssues())
	list("Open questions", "-", h.Content.GetOpenQuestions())
	list("Acceptance checklist", "-", each(h.Checklist, itemMarkdown))
	list("Transferred", "-", each(h.Grants, grantMarkdown))
	return b.String()
}

func linkMarkdown(l *pb.ContextLink) string {
	target := work.Word(l.Kind) + " `" + l.Target + "`"
	if l.Kind == pb.ContextLinkKind_CONTEXT_LINK_KIND_URL {
		target = "<" + l.Target + ">"
	}
	if l.Title != "" {
		target += ": " + l.Title
	}
	return target
}

func itemMarkdown(i *pb.ChecklistItem) string {
	if !i.Checked {
		return "[ ] " + i.Text
	}
	return "[x] " + i.Text + " (" + i.CheckedBy + ", " + at(i.CheckedAt) + ")"
}

func grantMarkdown(g *pb.HandoffGrant) string {
	s := fmt.Sprintf("%s `%s`, fence %d", work.Word(g.Kind), g.Name, g.Fence)
	switch {
	case g.Lost:
		s += ", lost before the handoff was accepted"
	case g.NewFence != 0:
		s += fmt.Sprintf(", now fence %d", g.NewFence)
	}
	return s
}

// indent lets the further lines of an item begin below its first one.
func indent(s string, by int) string {
	return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n"+strings.Repeat(" ", by))
}

func at(t *timestamppb.Timestamp) string { return t.AsTime().Format(time.RFC3339) }

func each[T any](list []T, as func(T) string) []string {
	out := make([]string, len(list))
	for i, item := range list {
		out[i] = as(item)
	}
	return out
}
