package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"brokerd/internal/caller"
	"brokerd/internal/fault"
	"brokerd/internal/once"
	"brokerd/internal/store"
)

// maxRedriven is how many dead letters of a mailbox one call handles.
const maxRedriven = 1000

// A DeadPlace is the position of a dead letter in their list.
type DeadPlace struct{ Message, Mailbox int64 }

// DeadLetters lists dead letters, newest first, that the caller may see: an agent those of the mailboxes that it
// takes from, an operator all. next is zero on the last page.
func (b *Broker) DeadLetters(ctx context.Context, c caller.Caller, mailbox string, size int, after DeadPlace) (items []Item, next DeadPlace, revision int64, err error) {
	if after.Message == 0 {
		after.Message = math.MaxInt64
	}
	err = b.store.Read(ctx, func(s *store.Snapshot) error {
		items, next, revision = nil, DeadPlace{}, s.Revision()
		a, err := b.acting(s, c)
		if err != nil {
			return err
		}
		boxes, err := b.visible(s, a, mailbox)
		if err != nil {
			return err
		}
		keys, err := readKeys(s.Query(selectDead, boxes, after.Message, after.Message, after.Mailbox, size+1))
		if err != nil {
			return err
		}
		bytes := 0
		for i, k := range keys {
			m, err := findMessage(s, a.session.ID, Ref{Revision: k.message})
			if err != nil {
				return err
			}
			if bytes += len(m.Content); i == size || bytes > maxAnswer && i > 0 {
				next = DeadPlace{keys[i-1].message, keys[i-1].mailbox}
				break
			}
			d, err := deliveryOf(s, k)
			if err != nil {
				return err
			}
			items = append(items, Item{Message: m, Delivery: d})
		}
		return nil
	})
	return items, next, revision, err
}

// Redrive puts dead letters back in front of their recipients: those of the messages, or up to 1,000 of the
// mailbox. It returns how many. Errors: fault.NotFound for a message that does not exist, fault.Precondition (NOT_DEAD) for one that
// has no dead letter the caller may see.
func (b *Broker) Redrive(ctx context.Context, c caller.Caller, req once.Request, refs []Ref, mailbox string) (int, int64, error) {
	return b.dead(ctx, c, req, refs, mailbox, "message.redriven", (*settling).redrive)
}

// Purge removes dead letters, chosen as for Redrive, for good: they become CANCELLED.
func (b *Broker) Purge(ctx context.Context, c caller.Caller, req once.Request, refs []Ref, mailbox string) (int, int64, error) {
	return b.dead(ctx, c, req, refs, mailbox, "message.purged", (*settling).purge)
}

// dead does something to chosen dead letters, each with an event.
func (b *Broker) dead(ctx context.Context, c caller.Caller, req once.Request, refs []Ref, mailbox, kind string,
	do func(*settling, key, int64) error) (int, int64, error) {
	var answer struct {
		Count    int
		Revision int64
	}
	err := b.change(ctx, req, &answer, func(tx *store.Tx) error {
		a, err := b.acting(tx, c)
		if err != nil {
			return err
		}
		boxes, err := b.visible(tx, a, mailbox)
		if err != nil {
			return err
		}
		var keys []key
		for _, ref := range refs {
			if _, err := findMessage(tx, a.session.ID, ref); err != nil {
				return err
			}
			found, err := readKeys(tx.Query(selectDeadOf, ref.Revision, boxes))
			if err != nil {
				return err
			}
			if len(found) == 0 {
				e := fault.New(fault.Precondition, "NOT_DEAD", "message %s has no dead letter here", ref.Text)
				e.Resource, e.Name = "message", ref.Text
				return e
			}
			keys = append(keys, found...)
		}
		if len(refs) == 0 {
			if keys, err = readKeys(tx.Query(selectDead, boxes, int64(math.MaxInt64), int64(math.MaxInt64), 0, maxRedriven)); err != nil {
				return err
			}
		}
		// Oldest first, so that they are ready in the order they were sent, and each once, however often it was named.
		slices.SortFunc(keys, func(a, b key) int {
			return cmp.Or(cmp.Compare(a.message, b.message), cmp.Compare(a.mailbox, b.mailbox))
		})
		keys = slices.Compact(keys)
		s := settling{Broker: b, tx: tx, actor: a, left: tally{}}
		answer.Count = len(keys)
		for _, k := range keys {
			entry := a.event(kind)
			entry.Summary = fmt.Sprintf("dead letter %d %s", k.message, kind[len("message."):])
			entry.Related = []string{fmt.Sprint(k.message)}
			if entry.Details, err = boxDetails(tx, k.mailbox); err != nil {
				return err
			}
			if s.last, err = b.log.Append(tx, entry); err != nil {
				return err
			}
			if err := do(&s, k, s.last); err != nil {
				return err
			}
		}
		answer.Revision, err = s.finish(nil)
		return err
	})
	return answer.Count, answer.Revision, err
}

// redrive makes a dead letter ready again; the revision is its new arrival.
func (s *settling) redrive(k key, revision int64) error {
	h := held{key: k}
	var priority int
	var sent time.Time
	err := s.tx.QueryRow(selectRedriven, k.message, k.mailbox).Scan(&h.rank, &priority, &sent, &h.expiresAt, &h.ordering, &h.queue)
	if err != nil {
		return err
	}
	if h.rank >= directiveRank { // the ageing may have changed since it died
		h.rank = rank(s.actor.session.Ageing, priority, sent)
	}
	state := Pending
	if h.ordering != "" {
		var earlier bool
		if err := s.tx.QueryRow(existsOrdered, k.mailbox, h.ordering).Scan(&earlier); err != nil {
			return err
		}
		if earlier {
			state = Blocked
		}
	}
	arrival := revision
	if h.queue {
		arrival = -revision
	}
	if !h.expiresAt.After(s.tx.Now()) {
		h.expiresAt = time.Time{} // it would be gone at once
	}
	if _, err := s.tx.Exec(updateRedriven, int(state), h.rank, arrival, h.expiresAt, k.message, k.mailbox); err != nil {
		return err
	}
	s.left[k.mailbox]++
	s.due = earliest(s.due, h.expiresAt)
	if state == Pending {
		s.ready.add(k.mailbox, place{h.rank, k.message})
	} else {
		s.ready.seen(k.mailbox)
	}
	return nil
}

func (s *settling) purge(k key, _ int64) error {
	_, err := s.tx.Exec(updateState, int(Cancelled), k.message, k.mailbox)
	return err
}

// visible returns the ids of the mailboxes whose dead letters the actor may see, as JSON for the queries.
func (b *Broker) visible(q store.Querier, a actor, mailbox string) (string, error) {
	var boxes []box
	var err error
	if a.system() {
		boxes, err = sessionBoxes(q, a.session.ID)
	} else {
		if a.mailbox, err = b.findMailbox(q, a.session.ID, mailboxRef{agentBox, a.Name}); err == nil {
			boxes, err = b.reachable(q, a)
		}
	}
	if err != nil {
		return "", err
	}
	if mailbox != "" {
		boxes = slices.DeleteFunc(boxes, func(b box) bool { return b.ref != parseMailbox(mailbox) })
		if len(boxes) == 0 {
			return "", fault.Missing("mailbox", mailbox, "there is no mailbox %q here, or it is not yours", mailbox)
		}
	}
	return idsOf(boxes), nil
}

// idsOf returns the ids of mailboxes as JSON for the queries.
func idsOf(boxes []box) string {
	ids := make([]int64, len(boxes))
	for i, b := range boxes {
		ids[i] = b.id
	}
	list, _ := json.Marshal(ids) // numbers always marshal
	return string(list)
}

func readKeys(rows *store.Rows) ([]key, error) {
	var keys []key
	for rows.Next() {
		var k key
		if err := rows.Scan(&k.message, &k.mailbox); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, rows.Err()
}

// deliveryOf returns one delivery with its history.
func deliveryOf(q store.Querier, k key) (Delivery, error) {
	found, err := deliveriesOf(q, k.message, k.mailbox)
	if err != nil || len(found) == 0 {
		return Delivery{}, err
	}
	return found[0], nil
}
