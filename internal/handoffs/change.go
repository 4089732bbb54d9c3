package handoffs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A Draft is a handoff to create.
type Draft struct {
	Title        string
	Task         string
	ToAgent      string // or
	ToRole       string
	Content      Content
	Checklist    []string
	TransferTask bool
	Fences       []int64 // of locks and tokens
}

// Create offers work. Errors: fault.NotFound for an unknown recipient or artifact; fault.Invalid if the caller is
// the recipient; fault.Precondition (NOT_HELD); fault.Exhausted (TOO_MANY_HANDOFFS); as directory.Directory
// and work.Post have them.
func (d *Desk) Create(ctx context.Context, c identity.Caller, req idempotency.Request, draft Draft) (Handoff, error) {
	return d.change(ctx, c, req, true, func(tx *store.Tx, s directory.Session, a directory.Agent) (Handoff, error) {
		return d.create(tx, s, a, draft)
	})
}

// Accept makes the caller the holder of the grants. Errors: fault.NotFound; fault.Denied
// (NOT_THE_RECIPIENT); fault.Precondition (HANDOFF_CLOSED, GRANTS_LOST, AGENT_REQUIRED);
// fault.Exhausted (TOO_MANY_QUEUES); as directory.Directory has them.
func (d *Desk) Accept(ctx context.Context, c identity.Caller, req idempotency.Request, id, notes string, partial bool) (Handoff, error) {
	return d.settle(ctx, c, req, id, func(tx *store.Tx, _ directory.Session, a directory.Agent, h *Handoff) error {
		switch {
		case a.System():
			return fault.AgentRequired()
		case !h.isFor(a):
			return h.errNotRecipient(a)
		case h.State != Pending:
			return h.errClosed()
		}
		return d.accept(tx, a, h, notes, partial)
	})
}

// Reject refuses a handoff. Errors: as for Accept.
func (d *Desk) Reject(ctx context.Context, c identity.Caller, req idempotency.Request, id, notes string) (Handoff, error) {
	return d.settle(ctx, c, req, id, func(tx *store.Tx, _ directory.Session, a directory.Agent, h *Handoff) error {
		switch {
		case !h.isFor(a) && !a.System():
			return h.errNotRecipient(a)
		case h.State != Pending:
			return h.errClosed()
		}
		return d.end(tx, a, h, Rejected, notes)
	})
}

// Cancel withdraws a handoff. Errors: fault.NotFound; fault.Denied (NOT_THE_SENDER);
// fault.Precondition (HANDOFF_CLOSED); as directory.Directory has them.
func (d *Desk) Cancel(ctx context.Context, c identity.Caller, req idempotency.Request, id, notes string) (Handoff, error) {
	return d.settle(ctx, c, req, id, func(tx *store.Tx, s directory.Session, a directory.Agent, h *Handoff) error {
		switch {
		case h.From != a.Name && !a.Directs(s):
			return fault.New(fault.Denied, "NOT_THE_SENDER", "only %s, a director or an operator may cancel handoff %s", h.From, h.Name())
		case h.State != Pending:
			return h.errClosed()
		}
		return d.end(tx, a, h, Cancelled, notes)
	})
}

// Check checks or unchecks an item, by its number from 1. Errors: fault.NotFound; fault.Denied
// (NOT_THE_RECIPIENT); fault.Precondition (HANDOFF_CLOSED); as directory.Directory has them.
func (d *Desk) Check(ctx context.Context, c identity.Caller, req idempotency.Request, id string, number int, checked bool) (Handoff, error) {
	return d.settle(ctx, c, req, id, func(tx *store.Tx, _ directory.Session, a directory.Agent, h *Handoff) error {
		may := h.isFor(a) && h.State == Pending || h.SettledBy == a.Name && h.State == Accepted
		switch {
		case h.State == Rejected || h.State == Cancelled:
			return h.errClosed()
		case !may && !a.System():
			return h.errNotRecipient(a)
		case number < 1 || number > len(h.Checklist):
			return fault.Missing("item", strconv.Itoa(number), "handoff %s has no item %d: its checklist has %d", h.Name(), number, len(h.Checklist))
		}
		return d.check(tx, a, h, &h.Checklist[number-1], number, checked)
	})
}

// change runs a change of the caller once.
func (d *Desk) change(
	ctx context.Context, c identity.Caller, req idempotency.Request, sends bool, fn func(*store.Tx, directory.Session, directory.Agent) (Handoff, error),
) (Handoff, error) {
	if sends {
		if err := d.post.Admit(ctx, c); err != nil {
			return Handoff{}, err
		}
	}
	var out Handoff
	err := d.store.Write(ctx, func(tx *store.Tx) error {
		var kept keptHandoff
		seen, err := req.Do(tx, &kept, func() error {
			s, err := d.dir.Session(tx, c.Session)
			if err != nil {
				return err
			}
			a, err := d.dir.Acting(tx, s.ID, c)
			if err == nil {
				out, err = fn(tx, s, a)
				kept = keep(&out)
			}
			return err
		})
		if err == nil && seen {
			out, err = kept.handoff(tx)
		}
		return err
	})
	return out, err
}

// settle runs a change of a handoff that exists.
func (d *Desk) settle(
	ctx context.Context, c identity.Caller, req idempotency.Request, id string, fn func(*store.Tx, directory.Session, directory.Agent, *Handoff) error,
) (Handoff, error) {
	return d.change(ctx, c, req, false, func(tx *store.Tx, s directory.Session, a directory.Agent) (Handoff, error) {
		h, err := find(tx, s.ID, id)
		if err == nil {
			err = fn(tx, s, a, &h)
		}
		return h, err
	})
}

func (d *Desk) create(tx *store.Tx, s directory.Session, a directory.Agent, draft Draft) (Handoff, error) {
	var pending int
	if err := tx.QueryRow(countPending, s.ID).Scan(&pending); err != nil {
		return Handoff{}, err
	}
	if pending >= mostPending {
		return Handoff{}, fault.New(fault.Exhausted, "TOO_MANY_HANDOFFS",
			"the session has %d pending handoffs, which is its limit (pending_handoffs): settle some of them first", pending)
	}
	h := Handoff{
		Session: s.ID, State: Pending, Title: draft.Title, Task: draft.Task, From: a.Name, ToAgent: draft.ToAgent, ToRole: draft.ToRole,
		Items: len(draft.Checklist), CreatedAt: tx.Now(), Content: draft.Content,
		Checklist: []Item{}, Grants: []Grant{},
	}
	if err := d.checkRecipient(tx, &h); err != nil {
		return h, err
	}
	if err := d.checkArtifacts(tx, &h); err != nil {
		return h, err
	}
	for _, text := range draft.Checklist {
		h.Checklist = append(h.Checklist, Item{Text: text})
	}
	if err := d.addGrants(tx, &h, draft); err != nil {
		return h, err
	}
	var err error
	h.ID, err = d.append(tx, &h, a, "handoff.created", a.Name+" hands over to "+h.To()+": "+h.Title,
		map[string]any{"title": h.Title, "from": h.From, "to_agent": h.ToAgent, "to_role": h.ToRole, "grants": h.grantNames()})
	if err != nil {
		return h, err
	}
	h.Revision = h.ID
	if err := d.insert(tx, &h); err != nil {
		return h, fmt.Errorf("store handoff: %w", err)
	}
	d.count(tx, "created")
	return h, d.request(tx, a, &h)
}

// checkRecipient refuses a recipient that is not registered, and the sender.
func (d *Desk) checkRecipient(tx *store.Tx, h *Handoff) error {
	if h.ToAgent != "" {
		if h.ToAgent == h.From {
			return fault.Field("to_agent", "is the caller; hand over to another agent")
		}
		_, found, err := d.dir.Find(tx, h.Session, h.ToAgent)
		if err == nil && !found {
			err = work.UnknownAgent(tx, d.dir, h.Session, h.ToAgent)
		}
		return err
	}
	members, err := d.dir.Matching(tx, h.Session, directory.Selection{Role: h.ToRole})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(members, func(m directory.Agent) bool { return m.Name != h.From }) {
		return fault.Missing("role", h.ToRole, "no other agent of the role %q is registered in this session", h.ToRole)
	}
	return nil
}

// checkArtifacts refuses artifacts that the session does not have: the recipient could not read them.
func (d *Desk) checkArtifacts(tx *store.Tx, h *Handoff) error {
	for i, reference := range h.Content.Artifacts {
		err := d.files.Find(tx, h.Session, reference)
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

// addGrants adds the grants that the draft names. The sender must hold them.
func (d *Desk) addGrants(tx *store.Tx, h *Handoff, draft Draft) error {
	if draft.TransferTask {
		fence, err := d.tasks.Fence(tx, h.Session, h.Task, h.From)
		if err != nil {
			return err
		}
		if fence == 0 {
			return errNotHeld(h.From, "the task "+h.Task)
		}
		h.Grants = append(h.Grants, Grant{Kind: Task, Name: h.Task, Fence: fence})
	}
	for _, fence := range draft.Fences {
		g, found, err := d.locks.Find(tx, h.Session, h.From, fence)
		if err != nil {
			return err
		}
		if !found {
			return errNotHeld(h.From, "a lock or token by fence "+strconv.FormatInt(fence, 10))
		}
		h.Grants = append(h.Grants, g)
	}
	return nil
}

func errNotHeld(agent, what string) error {
	return fault.New(fault.Precondition, "NOT_HELD", "%s does not hold %s: a handoff transfers only the grants of its sender", agent, what)
}

func (d *Desk) insert(tx *store.Tx, h *Handoff) error {
	content, err := json.Marshal(h.Content)
	if err != nil {
		return err
	}
	checklist, grants, err := h.lists()
	if err != nil {
		return err
	}
	tx.Exec(insertHandoff, h.ID, h.Session, h.Revision, int(h.State), h.Title, h.Task, h.From, h.ToAgent, h.ToRole, h.Items, h.Checked,
		h.CreatedAt, h.SettledAt, h.SettledBy, h.Notes, string(content), checklist, grants)
	return nil
}

// lists returns the lists that change as JSON.
func (h *Handoff) lists() (checklist, grants string, err error) {
	a, err := json.Marshal(h.Checklist)
	if err != nil {
		return "", "", err
	}
	b, err := json.Marshal(h.Grants)
	return string(a), string(b), err
}

// save stores the fields of a handoff that changes alter, and wakes the calls that wait for it.
func (d *Desk) save(tx *store.Tx, h *Handoff) error {
	checklist, grants, err := h.lists()
	if err != nil {
		return err
	}
	tx.Exec(updateHandoff, h.Revision, int(h.State), h.Checked, h.SettledAt, h.SettledBy, h.Notes, checklist, grants, h.ID)
	tx.OnCommit(func() { d.hub.Wake(h.ID) })
	return nil
}

// saveEnd stores the end of a handoff that changes neither its checklist nor its grants.
func (d *Desk) saveEnd(tx *store.Tx, h *Handoff) {
	tx.Exec(updateEnd, h.Revision, int(h.State), h.SettledAt, h.SettledBy, h.Notes, h.ID)
	tx.OnCommit(func() { d.hub.Wake(h.ID) })
}

const (
	// mostBody is how many bytes of the Markdown the request has.
	mostBody = 32 << 10
	// requestPriority is the priority of the request, as that of the answer, which is a notice.
	requestPriority = 7
)

// request sends the handoff to its recipient.
func (d *Desk) request(tx *store.Tx, a directory.Agent, h *Handoff) error {
	payload, err := json.Marshal(map[string]any{
		"handoff_id": h.Name(), "title": h.Title, "task_id": h.Task, "from": h.From, "to_agent": h.ToAgent, "to_role": h.ToRole,
		"artifacts": h.Content.Artifacts, "items": h.Items, "grants": h.grantNames(),
	})
	if err != nil {
		return err
	}
	body := Markdown(h)
	if len(body) > mostBody {
		body = strings.ToValidUTF8(body[:mostBody], "") + "…\n\nThe rest: brokerctl handoff get " + h.Name()
	}
	l := work.Letter{
		From: a, Role: h.ToRole, Type: "handoff_request", Subject: "Handoff from " + h.From + ": " + h.Title, Body: body,
		Payload: string(payload), Task: h.Task, Priority: requestPriority, Artifacts: h.Content.Artifacts, About: h.ID,
	}
	if h.ToAgent != "" {
		l.To = []string{h.ToAgent}
	}
	_, err = d.post.Post(tx, h.Session, l)
	return err
}

// accept moves the grants and settles the handoff.
func (d *Desk) accept(tx *store.Tx, a directory.Agent, h *Handoff, notes string, partial bool) error {
	lost, err := d.findLost(tx, h)
	if err != nil {
		return err
	}
	if len(lost) > 0 && !partial {
		return fault.New(fault.Precondition, "GRANTS_LOST",
			"%s does not hold %s any more: accept the rest (partial), or reject the handoff",
			h.From, strings.Join(lost, " and "))
	}
	for i := range h.Grants {
		g := &h.Grants[i]
		switch {
		case g.Lost:
		case g.Kind == Task:
			g.New, err = d.tasks.Transfer(tx, h.Session, g.Name, h.From, a.Name)
		default:
			g.New, err = d.locks.Transfer(tx, h.Session, g.Fence, h.From, a, "handoff "+h.Name())
		}
		if err != nil {
			return fmt.Errorf("transfer %s: %w", g, err)
		}
	}
	return d.end(tx, a, h, Accepted, notes)
}

// findLost marks the grants that the sender does not hold any more, and names them.
func (d *Desk) findLost(q store.Querier, h *Handoff) (lost []string, err error) {
	for i := range h.Grants {
		g := &h.Grants[i]
		held := false
		if g.Kind == Task {
			var fence int64
			fence, err = d.tasks.Fence(q, h.Session, g.Name, h.From)
			held = fence == g.Fence
		} else {
			_, held, err = d.locks.Find(q, h.Session, h.From, g.Fence)
		}
		if err != nil {
			return nil, err
		}
		if !held {
			g.Lost = true
			lost = append(lost, g.String())
		}
	}
	return lost, nil
}

// end settles a pending handoff, and reports that to its sender.
func (d *Desk) end(tx *store.Tx, a directory.Agent, h *Handoff, state State, notes string) error {
	summary := a.Name + " has " + state.String() + " the handoff from " + h.From + ": " + h.Title
	more := map[string]any{"title": h.Title, "from": h.From, state.String() + "_by": a.Name, "notes": notes, "grants": h.grantDetails()}
	revision, err := d.append(tx, h, a, "handoff."+state.String(), summary, more)
	if err != nil {
		return err
	}
	h.Revision, h.State, h.SettledAt, h.SettledBy, h.Notes = revision, state, tx.Now(), a.Name, notes
	if state != Accepted {
		d.saveEnd(tx, h)
	} else if err := d.save(tx, h); err != nil {
		return err
	}
	d.count(tx, state.String())
	if err := d.post.Withdraw(tx, h.Session, work.Moot{About: h.ID}); err != nil {
		return err
	}
	if state == Cancelled || h.From == identity.System {
		return nil
	}
	payload, err := json.Marshal(more)
	if err != nil {
		return err
	}
	if notes != "" {
		summary += "; notes: " + notes
	}
	return d.post.Notify(tx, h.Session, work.Notice{
		Agent: h.From, Type: "handoff_" + state.String(), Subject: summary, Payload: string(payload), Task: h.Task,
	})
}

func (d *Desk) check(tx *store.Tx, a directory.Agent, h *Handoff, item *Item, number int, checked bool) error {
	if (item.CheckedBy != "") == checked {
		return nil
	}
	verb := "unchecked"
	if checked {
		verb = "checked"
	}
	revision, err := d.append(tx, h, a, "handoff.checked", a.Name+" has "+verb+" item "+strconv.Itoa(number)+" of handoff "+h.Name()+": "+headline(item.Text),
		map[string]any{"item": number, "checked": checked})
	if err != nil {
		return err
	}
	h.Revision = revision
	if checked {
		item.CheckedBy, item.CheckedAt = a.Name, tx.Now()
		h.Checked++
	} else {
		item.CheckedBy, item.CheckedAt = "", time.Time{}
		h.Checked--
	}
	return d.save(tx, h)
}

// append adds an event of a handoff and returns its revision. Without an id, the handoff is new.
func (d *Desk) append(
	tx *store.Tx, h *Handoff, a directory.Agent, kind, summary string, details map[string]any,
) (int64, error) {
	details["task_id"] = h.Task
	e := events.Entry{
		Session: h.Session, Category: events.Work, Type: kind, Source: a.Name, SourceRole: a.Role, Summary: headline(summary), TaskID: h.Task,
	}
	if h.ID != 0 {
		e.Related = []string{h.Name()}
		details["handoff_id"] = h.Name()
	}
	text, err := json.Marshal(details)
	if err != nil {
		return 0, err
	}
	e.Details = string(text)
	return d.log.Append(tx, e)
}

// count counts an outcome.
func (d *Desk) count(tx *store.Tx, outcome string) {
	if d.observer != nil {
		tx.OnCommit(func() { d.observer.Work(noun, outcome) })
	}
}

func (h *Handoff) errNotRecipient(a directory.Agent) error {
	return fault.New(fault.Denied, "NOT_THE_RECIPIENT", "handoff %s is for %s, not for %s", h.Name(), h.To(), a.Name)
}

func (h *Handoff) errClosed() error {
	return fault.New(fault.Precondition, "HANDOFF_CLOSED", "handoff %s is %s, by %s at %s", h.Name(), h.State, h.SettledBy,
		h.SettledAt.UTC().Format(time.RFC3339)).With("state", h.State.String())
}

func (h *Handoff) grantNames() []string {
	names := make([]string, len(h.Grants))
	for i, g := range h.Grants {
		names[i] = g.Kind.String() + " " + g.Name
	}
	return names
}

// grantDetails are the grants as events and payloads have them.
func (h *Handoff) grantDetails() []map[string]any {
	list := make([]map[string]any, len(h.Grants))
	for i, g := range h.Grants {
		list[i] = map[string]any{"kind": g.Kind.String(), "name": g.Name, "fence": g.Fence, "new_fence": g.New, "lost": g.Lost}
	}
	return list
}

// headline is the first line of a text, clipped.
func headline(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if len(line) > 300 {
		line = strings.ToValidUTF8(line[:300], "") + "…"
	}
	return line
}
