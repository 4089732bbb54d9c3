package votes

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The types of messages and events.
const (
	initiateType     = "vote_initiate"
	announcementType = "decision_announcement"

	openedEvent = "vote.opened"
	castEvent   = "vote.cast"
	leftEvent   = "vote.elector_left"
	closedEvent = "vote.closed"
)

// An Electorate is who may vote: agents, or a role, or every agent if both are empty.
type Electorate struct {
	Agents []string
	Role   string
}

// A Motion is a vote that a caller wants to open.
type Motion struct {
	Title       string
	Description string
	Options     []string
	Electorate  Electorate
	Deadline    time.Time // zero = defaultDuration from now
	Quorum      Quorum
	Rule        Rule
	Task        string
}

// A change is a transaction that changes votes.
type change struct {
	*Votes
	tx      *store.Tx
	session int64
	actor   directory.Agent // the zero Agent is the broker
}

// act runs fn in a transaction as the calling agent or operator, once per request. fn leaves the
// answer in out; a repeated request receives it again.
func (v *Votes) act(
	ctx context.Context, who identity.Caller, req idempotency.Request, out *Closing, fn func(t *change) error,
) error {
	return v.store.Write(ctx, func(tx *store.Tx) error {
		*out = Closing{} // the function can run twice
		var kept keptVote
		seen, err := req.Do(tx, &kept, func() error {
			s, err := v.dir.Session(tx, who.Session)
			if err != nil {
				return err
			}
			actor, err := v.dir.Acting(tx, s.ID, who)
			if err != nil {
				return err
			}
			err = fn(&change{Votes: v, tx: tx, session: s.ID, actor: actor})
			kept = keep(out)
			return err
		})
		if err == nil && seen {
			*out, err = kept.closing(tx)
		}
		return err
	})
}

// Open opens a vote and sends a letter to each elector. Errors: fault.NotFound for an elector or a
// role without agents, fault.Invalid for a deadline or a quorum that cannot be, fault.Exhausted
// (TOO_MANY_VOTES), fault.Precondition (TOO_MANY_ELECTORS).
func (v *Votes) Open(ctx context.Context, who identity.Caller, req idempotency.Request, m Motion) (Vote, error) {
	if err := v.post.Admit(ctx, who); err != nil {
		return Vote{}, err
	}
	var out Closing
	err := v.act(ctx, who, req, &out, func(t *change) (err error) {
		out.Vote, err = t.open(m)
		return err
	})
	if err != nil {
		return Vote{}, fmt.Errorf("open vote: %w", err)
	}
	return out.Vote, nil
}

func (t *change) open(m Motion) (Vote, error) {
	var open int
	if err := t.tx.QueryRow(countOpen, t.session).Scan(&open); err != nil {
		return Vote{}, err
	}
	if open >= MaxOpen {
		return Vote{}, fault.New(fault.Exhausted, "TOO_MANY_VOTES",
			"%d votes are open in this session, which is the limit: close one first", open).
			With("limit", "open_votes").With("open_votes", strconv.Itoa(MaxOpen))
	}
	electors, err := t.electors(m.Electorate)
	if err != nil {
		return Vote{}, err
	}
	v := Vote{
		Session: t.session, Title: m.Title, Description: m.Description, Opener: t.actor.Name, Rule: m.Rule,
		Quorum: m.Quorum, Task: m.Task, OpenedAt: t.tx.Now(), Deadline: m.Deadline, Electors: len(electors),
	}
	if v.Deadline.IsZero() {
		v.Deadline = v.OpenedAt.Add(defaultDuration)
	}
	if ahead := v.Deadline.Sub(v.OpenedAt); ahead <= 0 || ahead > longest {
		return Vote{}, fault.Field("deadline", "must be in the future and at most %d days away; the broker's clock has %s",
			int(longest.Hours()/24), v.OpenedAt.UTC().Format(time.RFC3339))
	}
	if m.Quorum.Ballots > len(electors) {
		return Vote{}, fault.Field("quorum.ballots", "is %d, but the vote has only %d electors", m.Quorum.Ballots, len(electors))
	}
	for _, option := range m.Options {
		v.Options = append(v.Options, Option{Text: option})
	}
	v.Key = t.tx.NextRevision()
	v.Revision, err = t.append(openedEvent, &v, summary(v.Opener, "opened", &v), map[string]any{
		"title": v.Title, "options": m.Options, "electors": len(electors), "rule": v.Rule.String(),
		"deadline": v.Deadline.UTC(),
	})
	if err != nil {
		return Vote{}, err
	}
	t.insert(&v, electors)
	t.deadlines.Expect(t.tx, v.Deadline)
	t.count("opened")
	return v, t.invite(&v, m.Options, electors)
}

// electors resolves an electorate to names.
func (t *change) electors(e Electorate) ([]string, error) {
	if len(e.Agents) > 0 {
		for _, name := range e.Agents {
			if _, found, err := t.dir.Find(t.tx, t.session, name); err != nil {
				return nil, err
			} else if !found {
				return nil, work.UnknownAgent(t.tx, t.dir, t.session, name)
			}
		}
		return e.Agents, nil
	}
	agents, err := t.dir.Matching(t.tx, t.session, directory.Selection{Role: e.Role})
	if err != nil {
		return nil, err
	}
	switch {
	case len(agents) > MaxElectors:
		return nil, fault.New(fault.Precondition, "TOO_MANY_ELECTORS",
			"the electorate has %d agents, and a vote can have %d: name the agents or a smaller role", len(agents), MaxElectors)
	case len(agents) == 0 && e.Role != "":
		return nil, fault.Missing("role", e.Role, "no agent has the role %q in this session", e.Role)
	case len(agents) == 0:
		return nil, fault.Missing("agent", "*", "no agent is registered in this session, so no agent could vote")
	}
	names := make([]string, len(agents))
	for i, a := range agents {
		names[i] = a.Name
	}
	return names, nil
}

// insert writes the rows of a new vote.
func (t *change) insert(v *Vote, electors []string) {
	t.tx.Exec(insertVote, v.Key, v.Session, v.Title, orNull(v.Description), v.Opener, int(v.Rule),
		v.Quorum.Ballots, v.Quorum.Share, orNull(v.Task), v.OpenedAt, v.Deadline, v.Electors, v.Revision)
	for i, o := range v.Options {
		t.tx.Exec(insertOption, v.Key, i, o.Text)
	}
	for _, name := range electors {
		t.tx.Exec(insertElector, v.Key, name)
	}
}

// invite sends the letters to the electorate.
func (t *change) invite(v *Vote, options, electors []string) error {
	payload, err := json.Marshal(map[string]any{
		"vote_id": v.ID(), "title": v.Title, "options": options, "rule": v.Rule.String(), "deadline": v.Deadline.UTC(),
	})
	if err != nil {
		return err
	}
	from := t.actor
	if from.System() {
		from = directory.Agent{}
	}
	_, err = t.post.Post(t.tx, t.session, work.Letter{
		From: from, To: electors, Type: initiateType, Subject: v.Title, Body: v.Description, Payload: string(payload),
		Task: v.Task, About: v.Key,
	})
	return err
}

// append adds an event about a vote and returns its revision.
func (t *change) append(eventType string, v *Vote, summary string, details map[string]any) (int64, error) {
	e := events.Entry{
		Session: t.session, Category: events.Work, Type: eventType, Source: t.actor.Name, SourceRole: t.actor.Role,
		Summary: summary, Related: []string{v.ID()}, TaskID: v.Task,
	}
	if e.Source == "" {
		e.Source = identity.System
	}
	details["vote_id"] = v.ID()
	text, err := json.Marshal(details)
	if err != nil {
		return 0, err
	}
	e.Details = string(text)
	return t.log.Append(t.tx, e)
}

// summary is a line such as: lead opened the vote "Deploy on Friday?".
func summary(agent, did string, v *Vote) string {
	return fmt.Sprintf("%s %s the vote %q", agent, did, v.Title)
}

// count reports an outcome for metrics after the commit.
func (t *change) count(outcome string) {
	if t.observer != nil {
		t.tx.OnCommit(func() { t.observer.Work(kind, outcome) })
	}
}

// orNull keeps empty text out of the table.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
