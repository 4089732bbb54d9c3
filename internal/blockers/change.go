package blockers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// A Draft is a blocker to raise.
type Draft struct {
	Reason      string
	Severity    Severity
	Awaited     Awaited
	Task        string
	Recipients  []Recipient // none = the first role of escalate_to that has an agent
	AutoResolve bool
	quiet       bool // the event of the change goes to no channels
}

// Raise raises a blocker. Errors: fault.NotFound for an unknown recipient; fault.Exhausted
// (TOO_MANY_BLOCKERS); as directory.Directory and work.Post have them.
func (b *Board) Raise(ctx context.Context, c identity.Caller, req idempotency.Request, d Draft) (Blocker, error) {
	if err := b.post.Admit(ctx, c); err != nil {
		return Blocker{}, err
	}
	return b.change(ctx, c, req, func(tx *store.Tx, s directory.Session, a directory.Agent) (Blocker, error) {
		return b.raise(tx, s, a, d)
	})
}

// Acknowledge records that the caller works on a blocker. Errors: fault.NotFound; fault.Precondition
// (BLOCKER_RESOLVED, OWN_BLOCKER); fault.Exhausted (TOO_MANY_ACKNOWLEDGEMENTS); as directory.Directory has
// them.
func (b *Board) Acknowledge(ctx context.Context, c identity.Caller, req idempotency.Request, id, note string) (Blocker, error) {
	return b.change(ctx, c, req, func(tx *store.Tx, s directory.Session, a directory.Agent) (Blocker, error) {
		x, err := find(tx, s.ID, id)
		if err == nil {
			err = b.acknowledge(tx, a, &x, note)
		}
		return x, err
	})
}

// Resolve ends a blocker. Errors: fault.NotFound; fault.Precondition (BLOCKER_RESOLVED); as
// directory.Directory has them.
func (b *Board) Resolve(ctx context.Context, c identity.Caller, req idempotency.Request, id, resolution string) (Blocker, error) {
	if err := b.post.Admit(ctx, c); err != nil {
		return Blocker{}, err
	}
	return b.change(ctx, c, req, func(tx *store.Tx, s directory.Session, a directory.Agent) (Blocker, error) {
		x, err := find(tx, s.ID, id)
		if err == nil && x.State == Resolved {
			err = x.errResolved()
		}
		if err == nil {
			err = b.resolve(tx, a, &x, resolution)
		}
		return x, err
	})
}

// change runs a change of the caller once.
func (b *Board) change(
	ctx context.Context, c identity.Caller, req idempotency.Request, fn func(*store.Tx, directory.Session, directory.Agent) (Blocker, error),
) (Blocker, error) {
	var out Blocker
	err := b.store.Write(ctx, func(tx *store.Tx) error {
		var kept keptBlocker
		seen, err := req.Do(tx, &kept, func() error {
			s, a, err := b.acting(tx, c)
			if err == nil {
				out, err = fn(tx, s, a)
				kept = keep(&out)
			}
			return err
		})
		if err == nil && seen {
			out, err = kept.blocker(tx)
		}
		return err
	})
	return out, err
}

func (b *Board) raise(tx *store.Tx, s directory.Session, a directory.Agent, d Draft) (Blocker, error) {
	unresolved := 0
	for _, state := range []State{Open, Acknowledged} {
		var n int
		if err := tx.QueryRow(countUnresolved, s.ID, int(state)).Scan(&n); err != nil {
			return Blocker{}, err
		}
		unresolved += n
	}
	if unresolved >= mostUnresolved {
		return Blocker{}, fault.New(fault.Exhausted, "TOO_MANY_BLOCKERS",
			"the session has %d blockers that are not resolved, which is its limit (unresolved_blockers): resolve some of them first", unresolved)
	}
	x := Blocker{
		Session: s.ID, State: Open, Agent: a.Name, Reason: d.Reason, Severity: d.Severity, Awaited: d.Awaited, Task: d.Task,
		AutoResolve: d.AutoResolve, RaisedAt: tx.Now(), quiet: d.quiet,
	}
	recipients, err := b.recipients(tx, s, &x, d.Recipients)
	if err == nil {
		recipients, err = b.withAwaited(tx, &x, recipients)
	}
	if err != nil {
		return x, err
	}
	reached, err := b.reached(tx, &x)
	if err != nil {
		return x, err
	}
	x.ID, err = b.append(tx, &x, a, "blocker.encountered", events.Warning, a.Name+" is blocked: "+x.headline(), map[string]any{
		"reason": clip(x.Reason, mostQuoted), "severity": x.Severity.String(), "awaited": x.awaited(), "recipients": names(recipients),
	})
	if err != nil {
		return x, err
	}
	x.Revision = x.ID
	x.Timeline = []Entry{{Step: Raised, At: tx.Now(), Agent: a.Name, Revision: x.ID}}
	if !reached {
		if x.Task != "" && b.tasks != nil {
			if x.TaskBlocked, err = b.tasks.Block(tx, s.ID, x.Task, a, x.headline()); err != nil {
				return x, err
			}
		}
		for _, r := range recipients {
			message, err := b.notify(tx, &x, a, r)
			if err != nil {
				return x, err
			}
			x.Timeline = append(x.Timeline, Entry{
				Step: Notified, At: tx.Now(), Agent: a.Name, Recipient: r, Message: message, Revision: x.ID,
			})
		}
		if s.BlockerTime > 0 {
			x.EscalatesAt = tx.Now().Add(s.BlockerTime)
		}
	}
	if err := b.insert(tx, &x); err != nil {
		return x, fmt.Errorf("store blocker: %w", err)
	}
	b.count(tx, "raised")
	if reached {
		return x, b.resolve(tx, directory.Agent{Name: identity.System}, &x, x.Awaited.reachedText())
	}
	return x, nil
}

func (b *Board) insert(tx *store.Tx, x *Blocker) error {
	timeline, err := json.Marshal(x.Timeline)
	if err != nil {
		return err
	}
	tx.Exec(insertBlocker, x.ID, x.Session, x.Revision, int(x.State), x.Agent, x.Reason, int(x.Severity), int(x.Awaited.Kind),
		x.Awaited.Name, x.Task, x.TaskBlocked, x.AutoResolve, x.RaisedAt, x.EscalatesAt, x.Escalations, x.NextRole, x.ResolvedAt, string(timeline))
	b.calendar.Expect(tx, x.EscalatesAt)
	return nil
}

// recipients returns the recipients of the first notification.
func (b *Board) recipients(tx *store.Tx, s directory.Session, x *Blocker, named []Recipient) ([]Recipient, error) {
	for _, r := range named {
		switch {
		case r.Agent != "":
			_, found, err := b.dir.Find(tx, s.ID, r.Agent)
			if err == nil && !found {
				err = work.UnknownAgent(tx, b.dir, s.ID, r.Agent)
			}
			if err != nil {
				return nil, err
			}
		default:
			members, err := b.dir.Matching(tx, s.ID, directory.Selection{Role: r.Role})
			if err == nil && len(members) == 0 {
				err = fault.Missing("role", r.Role, "no agent of the role %q is registered in this session", r.Role)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	if len(named) > 0 {
		return named, nil
	}
	role, err := b.nextRole(tx, s, x)
	if role == "" || err != nil {
		return nil, err
	}
	return []Recipient{{Role: role}}, nil
}

// withAwaited adds the agent that a blocker awaits to the recipients of the first notification, unless
// it has raised the blocker, is not registered or is a recipient already: by its name, or as the only
// agent of a role.
func (b *Board) withAwaited(tx *store.Tx, x *Blocker, list []Recipient) ([]Recipient, error) {
	if x.Awaited.Kind != Agent || x.Awaited.Name == x.Agent {
		return list, nil
	}
	_, found, err := b.dir.Find(tx, x.Session, x.Awaited.Name)
	if err != nil || !found {
		return list, err
	}
	for _, r := range list {
		if r.Agent == x.Awaited.Name {
			return list, nil
		}
		if r.Role == "" {
			continue
		}
		members, err := b.dir.Matching(tx, x.Session, directory.Selection{Role: r.Role})
		if err != nil {
			return nil, err
		}
		members = slices.DeleteFunc(members, func(m directory.Agent) bool { return m.Name == x.Agent })
		if len(members) == 1 && members[0].Name == x.Awaited.Name {
			return list, nil
		}
	}
	return append(slices.Clone(list), Recipient{Agent: x.Awaited.Name}), nil
}

// nextRole returns the next role of escalate_to with an agent that is alive and has not raised the
// blocker, or else with any other agent, and moves the blocker's position behind it. It returns no
// role if there is none.
func (b *Board) nextRole(tx *store.Tx, s directory.Session, x *Blocker) (string, error) {
	lost := -1 // the position of the first role whose other agents have all ended
	for i := range s.EscalateTo {
		at := (x.NextRole + i) % len(s.EscalateTo)
		members, err := b.dir.Matching(tx, s.ID, directory.Selection{Role: s.EscalateTo[at]})
		if err != nil {
			return "", err
		}
		for _, m := range members {
			switch {
			case m.Name == x.Agent:
			case !m.Ended():
				x.NextRole = at + 1
				return s.EscalateTo[at], nil
			case lost < 0:
				lost = at
			}
		}
	}
	if lost < 0 {
		return "", nil
	}
	x.NextRole = lost + 1
	return s.EscalateTo[lost], nil
}

// reached reports whether the awaited object of a blocker that resolves itself is reached already.
func (b *Board) reached(tx *store.Tx, x *Blocker) (bool, error) {
	switch {
	case !x.AutoResolve:
	case x.Awaited.Kind == Agent:
		completed, _, err := b.dir.Completed(tx, x.Session, x.Awaited.Name)
		return completed, err
	case x.Awaited.Kind == Task && b.tasks != nil:
		return b.tasks.Done(tx, x.Session, x.Awaited.Name)
	}
	return false, nil
}

func (b *Board) acknowledge(tx *store.Tx, a directory.Agent, x *Blocker, note string) error {
	switch {
	case x.State == Resolved:
		return x.errResolved()
	case x.acknowledgedBy(a.Name):
		return nil
	case x.Agent == a.Name && !a.System():
		return fault.New(fault.Precondition, "OWN_BLOCKER", "%s has raised blocker %s: another agent acknowledges it", a.Name, x.Name())
	case x.acknowledgements() >= mostAcknowledged:
		return fault.New(fault.Exhausted, "TOO_MANY_ACKNOWLEDGEMENTS",
			"blocker %s has been acknowledged %d times since it was raised, which is the limit: resolve it, or raise another one",
			x.Name(), mostAcknowledged)
	}
	revision, err := b.append(tx, x, a, "blocker.acknowledged", events.Info, a.Name+" works on the blocker of "+x.Agent+": "+x.headline(),
		map[string]any{"acknowledged_by": a.Name, "note": note})
	if err != nil {
		return err
	}
	tx.Exec(insertAcknowledger, x.ID, a.Name, x.Session, revision)
	x.Revision, x.State, x.EscalatesAt = revision, Acknowledged, time.Time{}
	x.Timeline = append(x.Timeline, Entry{Step: WasAcknowledged, At: tx.Now(), Agent: a.Name, Note: note, Revision: revision})
	b.count(tx, "acknowledged")
	return b.save(tx, x)
}

// resolve ends a blocker that is not resolved.
func (b *Board) resolve(tx *store.Tx, a directory.Agent, x *Blocker, resolution string) error {
	involved, err := b.involved(tx, a, x)
	if err != nil {
		return err
	}
	stopped := x.TaskBlocked
	if stopped {
		others, err := b.stopping(tx, x.Session, x.Task, x.ID, 1)
		if err != nil {
			return err
		}
		stopped = len(others) == 0
	}
	lasted := x.TimeBlocked(tx.Now())
	summary := a.Name + " has resolved " + x.ofWhom(a.Name) + " after " + validate.Short(lasted.Round(time.Second)) + ": " + x.headline()
	revision, err := b.append(tx, x, a, "blocker.resolved", events.Info, summary,
		map[string]any{"resolved_by": a.Name, "resolution": resolution, "time_blocked_seconds": lasted.Seconds()})
	if err != nil {
		return err
	}
	x.Revision, x.State, x.EscalatesAt, x.ResolvedAt = revision, Resolved, time.Time{}, tx.Now()
	x.Timeline = append(x.Timeline, Entry{Step: WasResolved, At: tx.Now(), Agent: a.Name, Note: resolution, Revision: revision})
	if err := b.save(tx, x); err != nil {
		return err
	}
	tx.Exec(deleteAcknowledgers, x.ID)
	if err := b.post.Withdraw(tx, x.Session, work.Moot{About: x.ID}); err != nil {
		return err
	}
	payload, err := x.payload(map[string]any{
		"resolved_by": a.Name, "resolution": resolution, "time_blocked_seconds": lasted.Seconds(),
	})
	if err != nil {
		return err
	}
	if resolution != "" {
		summary += "; resolution: " + resolution
	}
	for _, name := range involved {
		n := work.Notice{Agent: name, Type: "response", Subject: summary, Payload: payload, Task: x.Task}
		if err := b.post.Notify(tx, x.Session, n); err != nil {
			return err
		}
	}
	b.count(tx, "resolved")
	if stopped {
		return b.tasks.Unblock(tx, x.Session, x.Task, a, "blocker "+x.Name()+" is resolved")
	}
	return nil
}

// involved returns the agents that have to do with a blocker, other than the one that resolves it.
func (b *Board) involved(tx *store.Tx, by directory.Agent, x *Blocker) ([]string, error) {
	list := []string{x.Agent}
	for _, e := range x.Timeline {
		switch {
		case e.Step == WasAcknowledged:
			list = append(list, e.Agent)
		case e.Recipient.Agent != "":
			list = append(list, e.Recipient.Agent)
		case e.Recipient.Role != "":
			members, err := b.dir.Matching(tx, x.Session, directory.Selection{Role: e.Recipient.Role})
			if err != nil {
				return nil, err
			}
			for _, m := range members {
				list = append(list, m.Name)
			}
		}
	}
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(name string) bool { return name == by.Name || name == identity.System }), nil
}

// notify sends a notification and returns the revision of the message.
func (b *Board) notify(tx *store.Tx, x *Blocker, from directory.Agent, to Recipient) (int64, error) {
	payload, err := x.payload(map[string]any{"escalations": x.Escalations})
	if err != nil {
		return 0, err
	}
	subject := x.Agent + " is blocked: "
	if to.Agent != "" && x.Awaited == (Awaited{Agent, to.Agent}) {
		subject = x.Agent + " waits for you: "
	}
	l := work.Letter{
		From: from, Role: to.Role, Type: "blocker_notification", Subject: subject + x.headline(),
		Body: x.Reason + "\n\nTo work on it: brokerctl blocker ack " + x.Name() +
			"\nWhen it is solved: brokerctl blocker resolve " + x.Name() + " TEXT",
		Payload: payload, Task: x.Task, Priority: x.Severity.priority(), About: x.ID,
	}
	if to.Agent != "" {
		l.To = []string{to.Agent}
	}
	return b.post.Post(tx, x.Session, l)
}

// payload returns what the messages about a blocker have in common, with more fields.
func (b *Blocker) payload(more map[string]any) (string, error) {
	more["blocker_id"], more["agent"], more["severity"] = b.Name(), b.Agent, b.Severity.String()
	more["reason"], more["awaited"], more["task_id"] = clip(b.Reason, mostQuoted), b.awaited(), b.Task
	text, err := json.Marshal(more)
	return string(text), err
}

// awaited returns the awaited object for payloads.
func (b *Blocker) awaited() any {
	if b.Awaited.Kind == 0 {
		return nil
	}
	return map[string]string{"kind": b.Awaited.Kind.String(), "name": b.Awaited.Name}
}

// reachedText says why a blocker has resolved itself.
func (a Awaited) reachedText() string {
	if a.Kind == Task {
		return "the task " + a.Name + " is done"
	}
	return a.Name + " has completed"
}

// ofWhom names the blocker in a sentence about an agent.
func (b *Blocker) ofWhom(agent string) string {
	if agent == b.Agent {
		return "its own blocker"
	}
	return "the blocker of " + b.Agent
}

// headline is the first line of the reason, clipped.
func (b *Blocker) headline() string {
	line, _, _ := strings.Cut(strings.TrimSpace(b.Reason), "\n")
	return clip(strings.TrimSpace(line), 200)
}

// mostQuoted is how many bytes of a reason events and payloads have; the body of a message has all.
const mostQuoted = 2 << 10

// clip shortens a text to about most bytes.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// append adds an event of a blocker and returns its revision. Without an id, the blocker is new.
func (b *Board) append(
	tx *store.Tx, x *Blocker, a directory.Agent, kind string, severity events.Severity, summary string,
	details map[string]any,
) (int64, error) {
	details["agent"], details["task_id"] = x.Agent, x.Task
	e := events.Entry{
		Session: x.Session, Category: events.Work, Type: kind, Severity: severity, Source: a.Name, SourceRole: a.Role,
		Summary: summary, TaskID: x.Task, Quiet: x.quiet,
	}
	if x.ID != 0 {
		e.Related = []string{x.Name()}
		details["blocker_id"] = x.Name()
	}
	text, err := json.Marshal(details)
	if err != nil {
		return 0, err
	}
	e.Details = string(text)
	return b.log.Append(tx, e)
}

// count counts an outcome.
func (b *Board) count(tx *store.Tx, outcome string) {
	if b.observer != nil {
		tx.OnCommit(func() { b.observer.Work(noun, outcome) })
	}
}

// errResolved is the error for a blocker that is resolved.
func (b *Blocker) errResolved() error {
	r := b.Resolution()
	return fault.New(fault.Precondition, "BLOCKER_RESOLVED", "%s has resolved blocker %s at %s already", r.Agent, b.Name(), r.At.UTC().Format(time.RFC3339)).
		With("resolved_by", r.Agent)
}

func names(list []Recipient) []string {
	out := make([]string, len(list))
	for i, r := range list {
		out[i] = r.String()
	}
	return out
}
