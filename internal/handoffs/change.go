package handoffs

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// create offers work. Errors: fault.NotFound for an unknown recipient or artifact; fault.Invalid if the
// caller is the recipient; fault.Precondition (NOT_HELD); fault.Exhausted (TOO_MANY_HANDOFFS); as work.Post
// has them.
func (s *Service) create(t *work.Tx, in *pb.CreateHandoffRequest) (*pb.Handoff, error) {
	n, err := s.CountOpen(t, t.Session.ID)
	if err != nil {
		return nil, err
	}
	if n >= mostPending {
		return nil, fault.New(fault.Exhausted, "TOO_MANY_HANDOFFS",
			"the session has %d pending handoffs, which is its limit (pending_handoffs): settle some of them first", n)
	}
	h := &pb.Handoff{
		State: pending, Title: in.GetTitle(), TaskId: in.GetTaskId(), From: t.Actor.Name, ToAgent: in.GetToAgent(),
		ToRole: in.GetToRole(),
		Items:  int32(len(in.GetChecklist())), CreatedAt: work.Stamp(t.Now()), Content: in.GetContent(),
	}
	if h.Content == nil {
		h.Content = &pb.HandoffContent{}
	}
	if err := s.checkRecipient(t, h); err != nil {
		return nil, err
	}
	if err := s.checkArtifacts(t, h); err != nil {
		return nil, err
	}
	for i, text := range in.GetChecklist() {
		h.Checklist = append(h.Checklist, &pb.ChecklistItem{Number: int32(i + 1), Text: text})
	}
	if err := s.addGrants(t, h, in); err != nil {
		return nil, err
	}
	h.Revision, err = s.Append(t, h, work.Event{
		Type: "handoff.created", Summary: h.From + " hands over to " + to(h) + ": " + h.Title,
		Details: map[string]any{
			"title": h.Title, "from": h.From, "to_agent": h.ToAgent, "to_role": h.ToRole, "task_id": h.TaskId,
			"grants": grantNames(h),
		},
	})
	if err != nil {
		return nil, err
	}
	h.Id = work.ID(s.Letter, h.Revision)
	if err := s.add(t, h); err != nil {
		return nil, err
	}
	s.Count(t, "created")
	return h, s.request(t, h)
}

// add stores a new handoff with its parts.
func (s *Service) add(t *work.Tx, h *pb.Handoff) error {
	if err := s.Add(t, h); err != nil {
		return err
	}
	if err := s.PutPart(t, h, "content", &pb.Handoff{Content: h.Content}); err != nil || len(h.Checklist) == 0 {
		return err
	}
	return s.PutPart(t, h, "checklist", &pb.Handoff{Checklist: h.Checklist})
}

// checkRecipient refuses a recipient that is not registered, and the sender.
func (s *Service) checkRecipient(t *work.Tx, h *pb.Handoff) error {
	if h.ToAgent != "" {
		if h.ToAgent == h.From {
			return fault.Field("to_agent", "is the caller; hand over to another agent")
		}
		return s.Known(t, t.Session.ID, h.ToAgent)
	}
	members, err := s.Directory.Matching(t, t.Session.ID, directory.Selection{Role: h.ToRole})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(members, func(m directory.Agent) bool { return m.Name != h.From }) {
		return fault.Missing("role", h.ToRole, "no other agent of the role %q is registered in this session", h.ToRole)
	}
	return nil
}

// checkArtifacts refuses artifacts that the session does not have: the recipient could not read them.
func (s *Service) checkArtifacts(t *work.Tx, h *pb.Handoff) error {
	for i, reference := range h.Content.Artifacts {
		err := s.files.Find(t, t.Session.ID, reference)
		var missing *fault.Error
		if errors.As(err, &missing) && missing.Kind == fault.NotFound {
			named, field := *missing, fmt.Sprintf("content.artifacts[%d]", i)
			says := "must be uploaded before the handoff: " + missing.Message
			named.Message, named.Violations = field+": "+says, []fault.Violation{{Field: field, Description: says}}
			err = &named
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addGrants adds the grants that the request names. The sender must hold them.
func (s *Service) addGrants(t *work.Tx, h *pb.Handoff, in *pb.CreateHandoffRequest) error {
	if in.GetTransferTask() {
		fence, err := s.tasks.Fence(t, t.Session.ID, h.TaskId, h.From)
		if err != nil {
			return err
		}
		if fence == 0 {
			return errNotHeld(h.From, "the task "+h.TaskId)
		}
		h.Grants = append(h.Grants, &pb.HandoffGrant{Kind: pb.GrantKind_GRANT_KIND_TASK, Name: h.TaskId, Fence: fence})
	}
	for _, fence := range fencesOf(in) {
		name, token, found, err := s.locks.Find(t, t.Session.ID, h.From, fence)
		if err != nil {
			return err
		}
		if !found {
			return errNotHeld(h.From, "a lock or token by fence "+strconv.FormatInt(fence, 10))
		}
		g := &pb.HandoffGrant{Kind: pb.GrantKind_GRANT_KIND_LOCK, Name: name, Fence: fence}
		if token {
			g.Kind = pb.GrantKind_GRANT_KIND_TOKEN
		}
		h.Grants = append(h.Grants, g)
	}
	return nil
}

func errNotHeld(agent, what string) error {
	return fault.New(fault.Precondition, "NOT_HELD",
		"%s does not hold %s: a handoff transfers only the grants of its sender", agent, what)
}

const (
	// mostBody is how many bytes of the Markdown the request has.
	mostBody = 32 << 10
	// requestPriority is the priority of the request, as that of the answer, which is a notice.
	requestPriority = 7
)

// request sends the handoff to its recipient.
func (s *Service) request(t *work.Tx, h *pb.Handoff) error {
	payload, err := json.Marshal(map[string]any{
		"handoff_id": h.Id, "title": h.Title, "task_id": h.TaskId, "from": h.From, "to_agent": h.ToAgent, "to_role": h.ToRole,
		"artifacts": h.Content.Artifacts, "items": h.Items, "grants": grantNames(h),
	})
	if err != nil {
		return err
	}
	body := markdown(h)
	if len(body) > mostBody {
		body = work.Clip(body, mostBody) + "\n\nThe rest is in handoff " + h.Id
	}
	l := work.Letter{
		From: t.Actor, Role: h.ToRole, Type: "handoff_request", Subject: "Handoff from " + h.From + ": " + h.Title,
		Body:    body,
		Payload: string(payload), Task: h.TaskId, Priority: requestPriority, Artifacts: h.Content.Artifacts, About: s.Key(h),
	}
	if h.ToAgent != "" {
		l.To = []string{h.ToAgent}
	}
	_, err = s.Post.Post(t.Tx, t.Session.ID, l)
	return err
}

// allows refuses a call of an agent that may not make it, and one that the state does not permit. Errors:
// fault.Denied (NOT_THE_RECIPIENT); fault.Precondition (HANDOFF_CLOSED).
func (s *Service) allows(t *work.Tx, h *pb.Handoff, call string, may bool) error {
	switch {
	case !may:
		return errNotRecipient(h, t.Actor)
	case !moves.Allows(h.State, call):
		return errClosed(h)
	}
	return nil
}

// accept moves the grants to the actor and settles the handoff. Errors: fault.Precondition (GRANTS_LOST,
// unless partial is set); fault.Exhausted (TOO_MANY_QUEUES).
func (s *Service) accept(t *work.Tx, h *pb.Handoff, notes string, partial bool) error {
	lost, err := s.findLost(t, t.Session.ID, h)
	if err != nil {
		return err
	}
	if len(lost) > 0 && !partial {
		return fault.New(fault.Precondition, "GRANTS_LOST",
			"%s does not hold %s any more: accept the rest (partial), or reject the handoff",
			h.From, strings.Join(lost, " and "))
	}
	for _, g := range h.Grants {
		switch {
		case g.Lost:
		case g.Kind == pb.GrantKind_GRANT_KIND_TASK:
			g.NewFence, err = s.tasks.Transfer(t.Tx, t.Session.ID, g.Name, h.From, t.Actor.Name)
		default:
			g.NewFence, err = s.locks.Transfer(t.Tx, t.Session.ID, g.Fence, h.From, t.Actor, "handoff "+h.Id)
		}
		if err != nil {
			return fmt.Errorf("transfer the %s: %w", grantName(g), err)
		}
	}
	return s.end(t, h, accepted, notes)
}

// findLost marks the grants that the sender does not hold any more, and names them.
func (s *Service) findLost(q store.Querier, session int64, h *pb.Handoff) (lost []string, err error) {
	for _, g := range h.Grants {
		held := false
		if g.Kind == pb.GrantKind_GRANT_KIND_TASK {
			var fence int64
			fence, err = s.tasks.Fence(q, session, g.Name, h.From)
			held = fence == g.Fence
		} else {
			_, _, held, err = s.locks.Find(q, session, h.From, g.Fence)
		}
		if err != nil {
			return nil, err
		}
		if !held {
			g.Lost = true
			lost = append(lost, "the "+grantName(g))
		}
	}
	return lost, nil
}

// end settles a pending handoff, and reports that to its sender.
func (s *Service) end(t *work.Tx, h *pb.Handoff, state pb.HandoffState, notes string) (err error) {
	verb := work.Word(state)
	summary := t.Actor.Name + " has " + verb + " the handoff from " + h.From + ": " + h.Title
	details := map[string]any{
		"title": h.Title, "from": h.From, verb + "_by": t.Actor.Name, "notes": notes, "task_id": h.TaskId,
		"grants": grantDetails(h),
	}
	h.Revision, err = s.Append(t, h, work.Event{Type: "handoff." + verb, Summary: summary, Details: details})
	if err != nil {
		return err
	}
	h.State, h.SettledAt, h.SettledBy, h.Notes = state, work.Stamp(t.Now()), t.Actor.Name, notes
	if err := s.Put(t, h); err != nil {
		return err
	}
	s.Count(t, verb)
	if err := s.Post.Withdraw(t.Tx, t.Session.ID, work.Moot{About: s.Key(h)}); err != nil {
		return err
	}
	if state == cancelled || h.From == work.Broker.Name {
		return nil
	}
	payload, err := json.Marshal(details)
	if err != nil {
		return err
	}
	if notes != "" {
		summary += "; notes: " + notes
	}
	return s.Post.Notify(t.Tx, t.Session.ID, work.Notice{
		Agent: h.From, Type: "handoff_" + verb, Subject: summary, Payload: string(payload), Task: h.TaskId,
	})
}

// checkItem checks or unchecks an item, by its number from 1. Errors: fault.Denied (NOT_THE_RECIPIENT);
// fault.NotFound.
func (s *Service) checkItem(t *work.Tx, h *pb.Handoff, number int, checked bool) (err error) {
	may := isFor(h, t.Actor) && h.State == pending || h.SettledBy == t.Actor.Name && h.State == accepted
	switch {
	case !may && !t.Actor.System():
		return errNotRecipient(h, t.Actor)
	case number < 1 || number > len(h.Checklist):
		return fault.Missing("item", strconv.Itoa(number), "handoff %s has no item %d: its checklist has %d", h.Id, number,
			len(h.Checklist))
	}
	item := h.Checklist[number-1]
	if item.Checked == checked {
		return nil
	}
	verb := "unchecked"
	if checked {
		verb = "checked"
	}
	h.Revision, err = s.Append(t, h, work.Event{
		Type: "handoff.checked",
		Summary: fmt.Sprintf("%s has %s item %d of handoff %s: %s", t.Actor.Name, verb, number, h.Id,
			work.Headline(item.Text, 300)),
		Details: map[string]any{"item": number, "checked": checked, "task_id": h.TaskId},
	})
	if err != nil {
		return err
	}
	if item.Checked = checked; checked {
		item.CheckedBy, item.CheckedAt = t.Actor.Name, work.Stamp(t.Now())
		h.Checked++
	} else {
		item.CheckedBy, item.CheckedAt = "", nil
		h.Checked--
	}
	return s.Put(t, h)
}

func errNotRecipient(h *pb.Handoff, a directory.Agent) error {
	return fault.New(fault.Denied, "NOT_THE_RECIPIENT", "handoff %s is for %s, not for %s", h.Id, to(h), a.Name)
}

func errClosed(h *pb.Handoff) error {
	state := work.Word(h.State)
	return fault.New(fault.Precondition, "HANDOFF_CLOSED", "handoff %s is %s, by %s at %s", h.Id, state, h.SettledBy,
		h.SettledAt.AsTime().Format(time.RFC3339)).With("state", state)
}

// grantName names a grant for people.
func grantName(g *pb.HandoffGrant) string { return work.Word(g.Kind) + " " + g.Name }

func grantNames(h *pb.Handoff) []string {
	names := make([]string, len(h.Grants))
	for i, g := range h.Grants {
		names[i] = grantName(g)
	}
	return names
}

// grantDetails are the grants as events and payloads have them.
func grantDetails(h *pb.Handoff) []map[string]any {
	list := make([]map[string]any, len(h.Grants))
	for i, g := range h.Grants {
		list[i] = map[string]any{
			"kind": work.Word(g.Kind), "name": g.Name, "fence": g.Fence, "new_fence": g.NewFence, "lost": g.Lost,
		}
	}
	return list
}
