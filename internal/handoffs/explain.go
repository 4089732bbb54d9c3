package handoffs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const (
	// longPending is the time after which a pending handoff is a warning.
	longPending = time.Hour
	// mostExplained limits the handoffs of one answer.
	mostExplained = 20
)

// Items returns the pending handoffs that an agent can accept or has created, at most limit, oldest
// first.
func (s *Service) Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error) {
	list, err := s.Owed(q, session, a, mostPending)
	if err == nil {
		var created []*pb.Handoff
		created, err = s.Open(q, session, work.Filter[*pb.Handoff]{Opener: a.Name}, mostPending)
		list = append(slices.DeleteFunc(list, func(h *pb.Handoff) bool { return h.From == a.Name }), created...)
	}
	if err != nil {
		return nil, fmt.Errorf("list handoffs of %s: %w", a.Name, err)
	}
	slices.SortFunc(list, func(a, b *pb.Handoff) int { return cmp.Compare(s.Key(a), s.Key(b)) })
	items := make([]work.Item, min(limit, len(list)))
	for i, h := range list[:len(items)] {
		item := s.Item(h, work.Owes)
		item.Other = h.From
		item.Calls = []calls.Call{
			calls.Do(&pb.AcceptHandoffRequest{Id: h.Id}), calls.Do(&pb.RejectHandoffRequest{Id: h.Id}, "notes"),
			calls.Do(&pb.GetHandoffRequest{Id: h.Id}),
		}
		if h.From == a.Name {
			item.Relation, item.Other = work.Opened, to(h)
			item.Calls = []calls.Call{
				calls.Do(&pb.GetHandoffRequest{Id: h.Id, Wait: finding.Patience()}),
				calls.Do(&pb.CancelHandoffRequest{Id: h.Id}),
			}
		}
		items[i] = item
	}
	return items, nil
}

// Explain describes a handoff, or the pending handoffs of an agent or to a role; without a subject, it
// finds those that have been pending for too long or cannot be accepted as they are. Errors:
// fault.NotFound for a handoff that does not exist.
func (s *Service) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	list := make([]*pb.Handoff, 1)
	var err error
	switch about.Kind {
	case finding.Handoff:
		list[0], err = s.Get(q, about.Session, about.Name)
	case finding.Everything, finding.Agent, finding.Role:
		list, err = s.Open(q, about.Session, work.Filter[*pb.Handoff]{}, mostPending)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("explain handoffs: %w", err)
	}
	return work.Findings(&about, list, mostExplained, func(h *pb.Handoff) bool {
		switch about.Kind {
		case finding.Agent:
			return h.From == about.Name || h.ToAgent == about.Name
		case finding.Role:
			return h.ToRole == about.Name
		default:
			return true
		}
	}, func(h *pb.Handoff) (finding.Finding, error) { return s.finding(q, &about, h) })
}

func (s *Service) finding(q store.Querier, about *finding.Question, h *pb.Handoff) (finding.Finding, error) {
	created := work.Time(h.CreatedAt)
	f := finding.Finding{
		Severity: finding.Info, Subject: "handoff " + h.Id, Since: created,
		Calls: []calls.Call{calls.Do(&pb.GetHandoffRequest{Id: h.Id})},
	}
	if h.State != pending {
		f.Summary = h.SettledBy + " has " + work.Word(h.State) + " the handoff from " + h.From + ": " + h.Title
		if h.Notes != "" {
			f.Reasons = []string{work.Headline(h.Notes, mostQuoted)}
		}
		return f, nil
	}
	f.Summary = to(h) + " has not answered the handoff from " + h.From + ": " + h.Title
	if about.Now.Sub(created) >= longPending {
		f.Severity = finding.Warning
	}
	lost, err := s.findLost(q, about.Session, h)
	if err != nil {
		return f, err
	}
	if len(lost) > 0 {
		f.Severity = finding.Warning
		says := h.From + " has lost " + strings.Join(lost, " and ") + ": it can only be accepted with --partial"
		f.Reasons = append(f.Reasons, says)
	}
	ready, err := s.recipientReady(q, about.Session, h)
	if err != nil {
		return f, err
	}
	if !ready {
		f.Severity = finding.Error
		f.Reasons = append(f.Reasons, "no agent that could accept it is alive")
	}
	if about.Mine(h.From) {
		f.Calls = append(f.Calls, calls.Do(&pb.CancelHandoffRequest{Id: h.Id}))
	}
	return f, nil
}

// mostQuoted is about how many bytes of the notes a finding has.
const mostQuoted = 300

// recipientReady reports whether an agent that may accept a handoff is alive.
func (s *Service) recipientReady(q store.Querier, session int64, h *pb.Handoff) (bool, error) {
	if h.ToAgent != "" {
		a, found, err := s.Directory.Find(q, session, h.ToAgent)
		return found && !a.Ended(), err
	}
	members, err := s.Directory.Matching(q, session, directory.Selection{Role: h.ToRole})
	for _, m := range members {
		if m.Name != h.From && !m.Ended() {
			return true, nil
		}
	}
	return false, err
}
