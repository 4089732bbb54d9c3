package handoffs

import "brokerd/internal/store"

// A keptHandoff is a handoff as the broker keeps it for a repeated request: without the texts, which
// the row has. Answers that an earlier version of the broker kept are whole.
type keptHandoff struct {
	Handoff
	Short  bool         `json:",omitempty"` // without Notes, Content, Checklist and Grants
	Checks map[int]Item `json:",omitempty"` // the checked items, by position, without texts
}

func keep(h *Handoff) keptHandoff {
	kept := keptHandoff{Handoff: *h, Short: true, Checks: map[int]Item{}}
	kept.Notes, kept.Content, kept.Checklist, kept.Grants = "", Content{}, nil, nil
	for i, item := range h.Checklist {
		if item.CheckedBy != "" {
			kept.Checks[i] = Item{CheckedBy: item.CheckedBy, CheckedAt: item.CheckedAt}
		}
	}
	return kept
}

// handoff returns the handoff as it was when it was kept. Its content and the texts of its checklist
// never change; its notes and the fates of its grants change once, when it settles. If the row has
// been removed since, the texts and lists are absent.
func (k *keptHandoff) handoff(q store.Querier) (Handoff, error) {
	h := k.Handoff
	if !k.Short {
		return h, nil
	}
	found, err := read(q.Query(selectHandoff, h.Session, h.ID))
	if err != nil || len(found) == 0 {
		return h, err
	}
	h.Content, h.Checklist, h.Grants = found[0].Content, found[0].Checklist, found[0].Grants
	for i := range h.Checklist {
		text := h.Checklist[i].Text
		h.Checklist[i] = k.Checks[i]
		h.Checklist[i].Text = text
	}
	if h.State != Pending {
		h.Notes = found[0].Notes
		return h, nil
	}
	for i := range h.Grants {
		h.Grants[i].New, h.Grants[i].Lost = 0, false
	}
	return h, nil
}
