package blockers

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// raise raises a blocker. Errors: fault.NotFound for an unknown recipient; fault.Exhausted
// (TOO_MANY_BLOCKERS); as work.Post has them.
func (s *Service) raise(t *work.Tx, in *pb.RaiseBlockerRequest) (*pb.Blocker, error) {
	n, err := s.CountOpen(t, t.Session.ID)
	if err != nil {
		return nil, err
	}
	if n >= mostUnresolved {
		return nil, fault.New(fault.Exhausted, "TOO_MANY_BLOCKERS",
			"the session has %d blockers that are not resolved, which is its limit (unresolved_blockers): resolve some of them first", n)
	}
	b := &pb.Blocker{
		State: open, Agent: t.Actor.Name, Reason: in.GetReason(),
		Severity: cmp.Or(in.GetSeverity(), pb.BlockerSeverity_BLOCKER_SEVERITY_MEDIUM),
		TaskId:   in.GetTaskId(), AutoResolve: in.GetAutoResolve(), RaisedAt: work.Stamp(t.Now()),
	}
	if in.GetAwaited().GetObject() != nil {
		b.Awaited = in.GetAwaited()
	}
	recipients, err := s.recipients(t, b, in.GetRecipients())
	if err == nil {
		recipients, err = s.withAwaited(t, b, recipients)
	}
	if err != nil {
		return nil, err
	}
	reached, err := s.reached(t, b)
	if err != nil {
		return nil, err
	}
	b.Revision, err = s.Append(t, b, work.Event{
		Type: "blocker.encountered", Severity: events.Warning, Summary: b.Agent + " is blocked: " + headline(b),
		Details: details(b, map[string]any{
			"reason": work.Clip(b.Reason, mostQuoted), "severity": work.Word(b.Severity), "awaited": awaited(b),
			"recipients": names(recipients),
		}),
	})
	if err != nil {
		return nil, err
	}
	b.Id = work.ID(s.Letter, b.Revision)
	entries := []*pb.BlockerTimelineEntry{{Step: pb.BlockerStep_BLOCKER_STEP_RAISED, Agent: b.Agent}}
	if !reached {
		notified, err := s.begin(t, b, recipients)
		if err != nil {
			return nil, err
		}
		entries = append(entries, notified...)
	}
	if err := s.add(t, b, entries); err != nil {
		return nil, err
	}
	s.Count(t, "raised")
	if reached {
		return b, s.resolve(t.ByBroker(), b, reachedText(awaitedOf(b.Awaited)))
	}
	return b, nil
}

// begin blocks the task of a new blocker and notifies the recipients.
func (s *Service) begin(
	t *work.Tx, b *pb.Blocker, recipients []*pb.BlockerRecipient,
) (notified []*pb.BlockerTimelineEntry, err error) {
	if b.TaskId != "" && s.tasks != nil {
		if b.TaskBlocked, err = s.tasks.Block(t.Tx, t.Session.ID, b.TaskId, t.Actor, headline(b)); err != nil {
			return nil, err
		}
	}
	for _, r := range recipients {
		message, err := s.notify(t, b, r)
		if err != nil {
			return nil, err
		}
		notified = append(notified, &pb.BlockerTimelineEntry{
			Step: pb.BlockerStep_BLOCKER_STEP_NOTIFIED, Agent: b.Agent, Recipient: r, Message: message,
		})
	}
	b.Recipients = recipients
	if wait := t.Session.Settings.GetBlockerEscalation().AsDuration(); wait > 0 {
		b.EscalatesAt = work.Stamp(t.Now().Add(wait))
	}
	return notified, nil
}

// add stores a new blocker with its parts.
func (s *Service) add(t *work.Tx, b *pb.Blocker, entries []*pb.BlockerTimelineEntry) error {
	if err := s.Add(t, b); err != nil {
		return err
	}
	if len(b.Reason) > rowReason {
		if err := s.PutPart(t, b, "reason", &pb.Blocker{Reason: b.Reason}); err != nil {
			return err
		}
	}
	return s.addEntries(t, b, entries...)
}

// recipients returns the recipients of the first notification.
func (s *Service) recipients(t *work.Tx, b *pb.Blocker, named []*pb.BlockerRecipient) ([]*pb.BlockerRecipient, error) {
	for _, r := range named {
		if r.GetAgent() != "" {
			if err := s.Known(t, t.Session.ID, r.GetAgent()); err != nil {
				return nil, err
			}
			continue
		}
		members, err := s.Directory.Matching(t, t.Session.ID, directory.Selection{Role: r.GetRole()})
		if err == nil && len(members) == 0 {
			err = fault.Missing("role", r.GetRole(), "no agent of the role %q is registered in this session", r.GetRole())
		}
		if err != nil {
			return nil, err
		}
	}
	if len(named) > 0 {
		return named, nil
	}
	role, err := s.nextRole(t, b)
	if role == "" || err != nil {
		return nil, err
	}
	return []*pb.BlockerRecipient{toRole(role)}, nil
}

// withAwaited adds the agent that a blocker awaits to the recipients of the first notification, unless
// it has raised the blocker, is not registered or is a recipient already: by its name, or as the only
// agent of a role.
func (s *Service) withAwaited(t *work.Tx, b *pb.Blocker, list []*pb.BlockerRecipient) ([]*pb.BlockerRecipient, error) {
	name := b.GetAwaited().GetAgent()
	if name == "" || name == b.Agent {
		return list, nil
	}
	_, found, err := s.Directory.Find(t, t.Session.ID, name)
	if err != nil || !found {
		return list, err
	}
	for _, r := range list {
		if r.GetAgent() == name {
			return list, nil
		}
		if r.GetRole() == "" {
			continue
		}
		members, err := s.Directory.Matching(t, t.Session.ID, directory.Selection{Role: r.GetRole()})
		if err != nil {
			return nil, err
		}
		members = slices.DeleteFunc(members, func(m directory.Agent) bool { return m.Name == b.Agent })
		if len(members) == 1 && members[0].Name == name {
			return list, nil
		}
	}
	return append(slices.Clone(list), toAgent(name)), nil
}

// nextRole returns the next role of escalate_to with an agent that is alive and has not raised the
// blocker, or else with any other agent, and moves the blocker's position behind it. It returns no
// role if there is none.
func (s *Service) nextRole(t *work.Tx, b *pb.Blocker) (string, error) {
	roles := t.Session.Settings.GetEscalateTo().GetNames()
	lost := -1 // the position of the first role whose other agents have all ended
	for i := range roles {
		at := (int(b.NextRole) + i) % len(roles)
		members, err := s.Directory.Matching(t, t.Session.ID, directory.Selection{Role: roles[at]})
		if err != nil {
			return "", err
		}
		for _, m := range members {
			switch {
			case m.Name == b.Agent:
			case !m.Ended():
				b.NextRole = int32(at + 1)
				return roles[at], nil
			case lost < 0:
				lost = at
			}
		}
	}
	if lost < 0 {
		return "", nil
	}
	b.NextRole = int32(lost + 1)
	return roles[lost], nil
}

// reached reports whether the awaited object of a blocker that resolves itself is reached already.
func (s *Service) reached(t *work.Tx, b *pb.Blocker) (bool, error) {
	switch kind, name := awaitedOf(b.Awaited); {
	case !b.AutoResolve:
	case kind == "agent":
		completed, _, err := s.Directory.Completed(t, t.Session.ID, name)
		return completed, err
	case kind == "task" && s.tasks != nil:
		return s.tasks.Done(t, t.Session.ID, name)
	}
	return false, nil
}

// acknowledge records that the actor works on a blocker. Errors: fault.Precondition (BLOCKER_RESOLVED,
// OWN_BLOCKER); fault.Exhausted (TOO_MANY_ACKNOWLEDGEMENTS).
func (s *Service) acknowledge(t *work.Tx, b *pb.Blocker, note string) (err error) {
	before := 0
	for _, e := range b.Timeline {
		if e.Step == pb.BlockerStep_BLOCKER_STEP_ACKNOWLEDGED {
			before++
		}
	}
	switch {
	case b.State == resolved:
		return errResolved(b)
	case slices.Contains(b.AcknowledgedBy, t.Actor.Name):
		return nil
	case b.Agent == t.Actor.Name && !t.Actor.System():
		return fault.New(fault.Precondition, "OWN_BLOCKER", "%s has raised blocker %s: another agent acknowledges it",
			b.Agent, b.Id)
	case before >= mostAcknowledged:
		return fault.New(fault.Exhausted, "TOO_MANY_ACKNOWLEDGEMENTS",
			"blocker %s has been acknowledged %d times since it was raised, which is the limit: resolve it, or raise another one",
			b.Id, mostAcknowledged)
	}
	b.Revision, err = s.Append(t, b, work.Event{
		Type: "blocker.acknowledged", Summary: t.Actor.Name + " works on the blocker of " + b.Agent + ": " + headline(b),
		Details: details(b, map[string]any{"acknowledged_by": t.Actor.Name, "note": note}),
	})
	if err != nil {
		return err
	}
	if len(b.AcknowledgedBy) == 0 {
		b.AcknowledgedAt = work.Stamp(t.Now())
	}
	b.State, b.EscalatesAt, b.AcknowledgedBy = acknowledged, nil, append(b.AcknowledgedBy, t.Actor.Name)
	s.Count(t, "acknowledged")
	e := &pb.BlockerTimelineEntry{Step: pb.BlockerStep_BLOCKER_STEP_ACKNOWLEDGED, Agent: t.Actor.Name, Note: note}
	return s.put(t, b, e)
}

// put stores a blocker that has changed, with the entry of the change.
func (s *Service) put(t *work.Tx, b *pb.Blocker, e *pb.BlockerTimelineEntry) error {
	if err := s.addEntries(t, b, e); err != nil {
		return err
	}
	return s.Put(t, b)
}

// resolve ends a blocker that is not resolved.
func (s *Service) resolve(t *work.Tx, b *pb.Blocker, resolution string) error {
	involved, err := s.involved(t, b)
	if err != nil {
		return err
	}
	free := b.TaskBlocked && !t.Session.Closed()
	if free {
		blocking, err := s.blocking(t, t.Session.ID, b.TaskId, 2)
		if err != nil {
			return err
		}
		free = !slices.ContainsFunc(blocking, func(other *pb.Blocker) bool { return other.Id != b.Id })
	}
	lasted, by := timeBlocked(b, t.Now()), t.Actor.Name
	summary := by + " has resolved " + ofWhom(b, by) + " after " + validate.Short(lasted.Round(time.Second)) + ": " +
		headline(b)
	facts := map[string]any{"resolved_by": by, "resolution": resolution, "time_blocked_seconds": lasted.Seconds()}
	payload, err := payloadOf(b, maps.Clone(facts))
	if err != nil {
		return err
	}
	b.Revision, err = s.Append(t, b, work.Event{Type: "blocker.resolved", Summary: summary, Details: details(b, facts)})
	if err != nil {
		return err
	}
	b.State, b.EscalatesAt, b.ResolvedAt, b.ResolvedBy, b.Resolution = resolved, nil, work.Stamp(t.Now()), by, resolution
	b.TimeBlocked = durationpb.New(lasted)
	e := &pb.BlockerTimelineEntry{Step: pb.BlockerStep_BLOCKER_STEP_RESOLVED, Agent: by, Note: resolution}
	if err := s.put(t, b, e); err != nil {
		return err
	}
	if err := s.Post.Withdraw(t.Tx, t.Session.ID, work.Moot{About: s.Key(b)}); err != nil {
		return err
	}
	if resolution != "" {
		summary += "; resolution: " + resolution
	}
	for _, name := range involved {
		n := work.Notice{Agent: name, Type: "response", Subject: summary, Payload: payload, Task: b.TaskId}
		if err := s.Post.Notify(t.Tx, t.Session.ID, n); err != nil {
			return err
		}
	}
	s.Count(t, "resolved")
	if free {
		return s.tasks.Unblock(t.Tx, t.Session.ID, b.TaskId, t.Actor, "blocker "+b.Id+" is resolved")
	}
	return nil
}

// involved returns the agents that have to do with a blocker, other than the one that resolves it.
func (s *Service) involved(t *work.Tx, b *pb.Blocker) ([]string, error) {
	list := []string{b.Agent}
	for _, e := range b.Timeline {
		switch {
		case e.Step == pb.BlockerStep_BLOCKER_STEP_ACKNOWLEDGED:
			list = append(list, e.Agent)
		case e.Recipient.GetAgent() != "":
			list = append(list, e.Recipient.GetAgent())
		case e.Recipient.GetRole() != "":
			members, err := s.Directory.Matching(t, t.Session.ID, directory.Selection{Role: e.Recipient.GetRole()})
			if err != nil {
				return nil, err
			}
			for _, m := range members {
				list = append(list, m.Name)
			}
		}
	}
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(name string) bool {
		return name == t.Actor.Name || name == work.Broker.Name
	}), nil
}

// notify sends a notification and returns the revision of the message.
func (s *Service) notify(t *work.Tx, b *pb.Blocker, to *pb.BlockerRecipient) (int64, error) {
	payload, err := payloadOf(b, map[string]any{"escalations": b.Escalations})
	if err != nil {
		return 0, err
	}
	subject := b.Agent + " is blocked: "
	if to.GetAgent() != "" && b.GetAwaited().GetAgent() == to.GetAgent() {
		subject = b.Agent + " waits for you: "
	}
	l := work.Letter{
		From: t.Actor, Role: to.GetRole(), Type: "blocker_notification", Subject: subject + headline(b),
		Body: b.Reason + "\n\nThis is blocker " + b.Id +
			": acknowledge it if you work on it, and resolve it when the obstacle is removed.",
		// The priorities of the severities are 3, 5, 7 and 9.
		Payload: payload, Task: b.TaskId, Priority: 1 + 2*int(b.Severity), About: s.Key(b),
	}
	if to.GetAgent() != "" {
		l.To = []string{to.GetAgent()}
	}
	return s.Post.Post(t.Tx, t.Session.ID, l)
}

// payloadOf returns what the messages about a blocker have in common, with more fields.
func payloadOf(b *pb.Blocker, more map[string]any) (string, error) {
	more["blocker_id"], more["agent"], more["severity"] = b.Id, b.Agent, work.Word(b.Severity)
	more["reason"], more["awaited"], more["task_id"] = work.Clip(b.Reason, mostQuoted), awaited(b), b.TaskId
	text, err := json.Marshal(more)
	return string(text), err
}

// mostQuoted is how many bytes of a reason events and payloads have; the body of a message has all.
const mostQuoted = 2 << 10

// details returns the details of an event with what those of all blockers have.
func details(b *pb.Blocker, more map[string]any) map[string]any {
	more["agent"], more["task_id"] = b.Agent, b.TaskId
	return more
}

// awaited returns the awaited object for payloads.
func awaited(b *pb.Blocker) any {
	kind, name := awaitedOf(b.Awaited)
	if kind == "" {
		return nil
	}
	return map[string]string{"kind": kind, "name": name}
}

// reachedText says why a blocker has resolved itself.
func reachedText(kind, name string) string {
	if kind == "task" {
		return "the task " + name + " is done"
	}
	return name + " has completed"
}

// errResolved is the error for a blocker that is resolved.
func errResolved(b *pb.Blocker) error {
	return fault.New(fault.Precondition, "BLOCKER_RESOLVED", "%s has resolved blocker %s at %s already",
		b.ResolvedBy, b.Id,
		b.ResolvedAt.AsTime().Format(time.RFC3339)).With("resolved_by", b.ResolvedBy)
}

func names(list []*pb.BlockerRecipient) []string {
	out := make([]string, len(list))
	for i, r := range list {
		out[i] = recipientName(r)
	}
	return out
}
