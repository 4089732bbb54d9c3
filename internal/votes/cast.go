package votes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Cast casts or changes the caller's ballot. The last ballot closes the vote. Errors: fault.NotFound
// for the vote and for the option; fault.Precondition (VOTE_CLOSED, AGENT_REQUIRED); fault.Denied
// (NOT_AN_ELECTOR).
func (v *Votes) Cast(
	ctx context.Context, who identity.Caller, req idempotency.Request, id, option, reason string,
) (Vote, error) {
	var out Closing
	err := v.act(ctx, who, req, &out, func(t *change) (err error) {
		if t.actor.System() {
			return fault.AgentRequired()
		}
		out.Vote, err = t.cast(id, option, reason)
		return err
	})
	if err != nil {
		return Vote{}, fmt.Errorf("cast ballot: %w", err)
	}
	return out.Vote, nil
}

func (t *change) cast(id, option, reason string) (Vote, error) {
	v, err := find(t.tx, t.session, id)
	if err != nil {
		return v, err
	}
	if !v.Open() || !t.tx.Now().Before(v.Deadline) {
		return v, closed(&v)
	}
	before, err := t.ballot(&v)
	if err != nil {
		return v, err
	}
	position := v.position(option)
	if position < 0 {
		return v, noOption(&v, option)
	}
	if before.Option == option && before.Reason == reason {
		return v, nil
	}
	first := before.CastAt.IsZero()
	details := map[string]any{"option": option}
	did := "voted in"
	changes := before.Changes
	if !first {
		details["before"] = before.Option
		did = "changed its ballot in"
		changes++
	}
	if v.Revision, err = t.append(castEvent, &v, summary(t.actor.Name, did, &v), details); err != nil {
		return v, err
	}
	t.tx.Exec(updateBallot, position, orNull(reason), t.tx.Now(), changes, v.Key, t.actor.Name)
	t.recount(&v, position, 1)
	if first {
		v.Ballots++
		if err := t.withdraw(&v); err != nil {
			return v, err
		}
	} else {
		t.recount(&v, v.position(before.Option), -1)
	}
	t.count("cast")
	return v, t.settle(&v)
}

// withdraw withdraws the letter of a vote to the acting agent.
func (t *change) withdraw(v *Vote) error {
	return t.post.Withdraw(t.tx, t.session, work.Moot{About: v.Key, Type: initiateType, Agent: t.actor.Name})
}

// ballot returns the ballot of the acting agent.
func (t *change) ballot(v *Vote) (Ballot, error) {
	b, err := scanBallot(t.tx.QueryRow(selectBallot, v.Key, t.actor.Name))
	switch {
	case errors.Is(err, store.ErrNoRows):
		return b, fault.New(fault.Denied, "NOT_AN_ELECTOR",
			"%s is no elector of the vote %s: the electorate was fixed when the vote opened", t.actor.Name, v.ID())
	case err == nil && b.Left:
		return b, fault.New(fault.Denied, "NOT_AN_ELECTOR",
			"%s has left the electorate of the vote %s, because it deregistered while the vote was open", t.actor.Name, v.ID())
	}
	return b, err
}

// recount adds ballots to an option.
func (t *change) recount(v *Vote, position, n int) {
	v.Options[position].Ballots += n
	t.tx.Exec(updateOption, n, v.Key, position)
}

// settle writes the numbers of a vote that has changed, and closes it if every remaining elector has
// voted.
func (t *change) settle(v *Vote) error {
	t.tx.Exec(updateCounts, v.Electors, v.Ballots, v.Revision, v.Key)
	if v.Ballots < v.Electors {
		return nil
	}
	t.actor = directory.Agent{}
	return t.close(v, AllVoted, "")
}

// closed is the error for a vote in which no ballot can be cast any more.
func closed(v *Vote) error {
	text := "the deadline of the vote " + v.ID() + " has passed"
	if !v.Open() {
		text = fmt.Sprintf("the vote %s is closed: %s", v.ID(), v.result())
	}
	return fault.New(fault.Precondition, "VOTE_CLOSED", "%s", text).With("outcome", v.Outcome.String())
}

func noOption(v *Vote, option string) error {
	options := make([]string, len(v.Options))
	for i, o := range v.Options {
		options[i] = o.Text
	}
	return fault.Missing("option", option, "the vote %s has no option %q; %s", v.ID(), option,
		nearest.Hint(option, options))
}

// A Closing is what became of a request to close a vote.
type Closing struct {
	Vote    Vote
	Already bool // it was closed before
}

// Close closes a vote with the ballots cast so far. Errors: fault.NotFound; fault.Denied
// (NOT_THE_OPENER) for agents that did not open it.
func (v *Votes) Close(ctx context.Context, who identity.Caller, req idempotency.Request, id, reason string) (Closing, error) {
	var out Closing
	err := v.act(ctx, who, req, &out, func(t *change) (err error) {
		if out.Vote, err = find(t.tx, t.session, id); err != nil {
			return err
		}
		if who.Access != identity.Operator && out.Vote.Opener != t.actor.Name {
			return fault.New(fault.Denied, "NOT_THE_OPENER",
				"only %s, which opened the vote %s, and operators may close it", out.Vote.Opener, out.Vote.ID())
		}
		if out.Already = !out.Vote.Open(); out.Already {
			return nil
		}
		return t.close(&out.Vote, ByHand, reason)
	})
	if err != nil {
		return Closing{}, fmt.Errorf("close vote: %w", err)
	}
	return out, nil
}

// close closes a vote, as the actor of the change.
func (t *change) close(v *Vote, end End, reason string) error {
	outcome, leader := Count(v.Rule, v.Quorum, v.Electors, v.counts())
	v.Outcome, v.End, v.ClosedBy, v.CloseReason, v.ClosedAt = outcome, end, t.actor.Name, reason, t.tx.Now()
	if leader >= 0 {
		v.Winner = v.Options[leader].Text
	}
	line := fmt.Sprintf("the vote %q closed: %s", v.Title, v.result())
	var err error
	if v.Revision, err = t.append(closedEvent, v, line, v.announcement()); err != nil {
		return err
	}
	t.tx.Exec(updateClosed, int(v.Outcome), orNull(v.Winner), int(end), orNull(v.ClosedBy), orNull(reason),
		v.ClosedAt, v.Revision, v.Key)
	key := v.Key
	t.tx.OnCommit(func() { t.hub.Wake(key) })
	t.count(outcome.String())
	if end == SessionClosed {
		return nil // the session has cancelled its messages, and takes no notices
	}
	_, err = t.backlog.Do(t.tx, work.Chore{Kind: announceChore, Session: v.Session, Item: v.Key})
	return err
}

// announcement is the payload of the notices, and the details of the event, of a closed vote.
func (v *Vote) announcement() map[string]any {
	tally := make([]map[string]any, len(v.Options))
	for i, o := range v.Options {
		tally[i] = map[string]any{"option": o.Text, "ballots": o.Ballots}
	}
	out := map[string]any{
		"vote_id": v.ID(), "title": v.Title, "outcome": v.Outcome.String(), "tally": tally,
		"electors": v.Electors, "ballots": v.Ballots,
	}
	if v.Winner != "" {
		out["winner"] = v.Winner
	}
	return out
}

// result says the outcome in a few words, such as: "yes" wins with 3 of 5 ballots.
func (v *Vote) result() string {
	var tied []string
	most := 0
	for _, o := range v.Options {
		switch {
		case o.Ballots > most:
			most, tied = o.Ballots, []string{o.Text}
		case o.Ballots == most:
			tied = append(tied, o.Text)
		}
	}
	switch v.Outcome {
	case Winner:
		return fmt.Sprintf("%q wins with %d of %d ballots", v.Winner, most, v.Ballots)
	case Tie:
		return fmt.Sprintf("a tie with %d ballots each for %s", most, strings.Join(tied, ", "))
	case NoMajority:
		return fmt.Sprintf("no majority among %d ballots", v.Ballots)
	default:
		return fmt.Sprintf("no quorum: %d of the required %d ballots", v.Ballots, v.Required())
	}
}

// deadlines returns the votes that close next.
func deadlines(q store.Querier, limit int) ([]work.Entry[int64], error) {
	return store.Collect(q.Query(selectDeadlines, limit), func(r *store.Rows) (e work.Entry[int64], err error) {
		return e, r.Scan(&e.Key, &e.At)
	})
}

// closeDue closes a vote if its deadline has passed.
func (v *Votes) closeDue(tx *store.Tx, key int64) error {
	found, err := all(tx, selectAny, key)
	if err != nil || len(found) == 0 || !found[0].Open() || found[0].Deadline.After(tx.Now()) {
		return err
	}
	t := &change{Votes: v, tx: tx, session: found[0].Session}
	if err := t.close(&found[0], DeadlineEnd, ""); err != nil {
		return fmt.Errorf("close vote %s: %w", found[0].ID(), err)
	}
	return nil
}
