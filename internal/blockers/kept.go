package blockers

import (
	"slices"

	"brokerd/internal/store"
)

// A keptBlocker is a blocker as the broker keeps it for a repeated request: without the texts, which
// the row has. Answers that an earlier version of the broker kept are whole.
type keptBlocker struct {
	Blocker
	Short bool `json:",omitempty"` // without Reason and Timeline
}

func keep(x *Blocker) keptBlocker {
	kept := keptBlocker{*x, true}
	kept.Reason, kept.Timeline = "", nil
	return kept
}

// blocker returns the blocker as it was when it was kept. The reason never changes, and changes add
// entries to the timeline. If the row has been removed since, the texts are absent.
func (k *keptBlocker) blocker(q store.Querier) (Blocker, error) {
	x := k.Blocker
	if !k.Short {
		return x, nil
	}
	found, err := read(q.Query(selectBlocker, x.Session, x.ID))
	if err != nil || len(found) == 0 {
		return x, err
	}
	x.Reason = found[0].Reason
	x.Timeline = slices.DeleteFunc(found[0].Timeline, func(e Entry) bool { return e.Revision > x.Revision })
	return x, nil
}
