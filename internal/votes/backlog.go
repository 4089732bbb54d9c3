package votes

import (
	"context"
	"encoding/json"
	"fmt"

	"brokerd/internal/directory"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The kinds of chores.
const (
	// Of the closed vote Item: withdraw its letters, then notify its opener and its electors. After is 1
	// once the opener is notified. Text is the last elector that has its notice.
	announceChore = "announce"
	// Remove the agent Name from the electorates of the open votes of which it is marked as leaving.
	leaveChore = "leave"
	// Close the votes of the session. After is the last one.
	closeChore = "close"
)

// mostNotified is how many electors one page notifies: a notice is about five rows.
const mostNotified = work.PageRows / 5

// mostVotes is how many votes, with up to 50 options each, one page reads.
const mostVotes = 100

// AgentGone removes a deregistered agent from the electorates of open votes. A vote closes if every
// remaining elector has voted. The agent can no longer vote in any of them when AgentGone returns; if
// there are many votes, the backlog counts it out of the rest. It is a hook of the deregistration.
func (v *Votes) AgentGone(tx *store.Tx, session int64, agent string) error {
	n, err := tx.ExecCount(markLeaving, agent, session)
	if err == nil && n > 0 {
		_, err = v.backlog.Do(tx, work.Chore{Kind: leaveChore, Session: session, Name: agent})
	}
	if err != nil {
		return fmt.Errorf("leave electorates: %w", err)
	}
	return nil
}

// SessionClosed closes the open votes of a session. If there are many, the backlog closes the rest. It
// is a hook of the session.
func (v *Votes) SessionClosed(tx *store.Tx, session int64) error {
	_, err := v.backlog.Do(tx, work.Chore{Kind: closeChore, Session: session})
	return err
}

// page does the next page of a chore, and reports whether there may be more.
func (v *Votes) page(tx *store.Tx, c *work.Chore) (more bool, err error) {
	switch c.Kind {
	case announceChore:
		return v.announceSome(tx, c)
	case leaveChore:
		return v.leaveSome(tx, c)
	default:
		return v.closeSome(tx, c)
	}
}

// leaveSome removes a leaving agent from some electorates.
func (v *Votes) leaveSome(tx *store.Tx, c *work.Chore) (more bool, err error) {
	found, err := all(tx, selectLeaving, c.Name, c.Session, mostVotes)
	if err != nil {
		return false, err
	}
	page := work.NewPage(tx)
	for i := range found {
		if page.Full() {
			return true, nil
		}
		t := &change{Votes: v, tx: tx, session: c.Session, actor: directory.Agent{Name: c.Name}}
		if err := t.leave(&found[i]); err != nil {
			return false, fmt.Errorf("leave the electorate of vote %s: %w", found[i].ID(), err)
		}
	}
	return len(found) == mostVotes, nil
}

func (t *change) leave(v *Vote) error {
	b, err := scanBallot(t.tx.QueryRow(selectBallot, v.Key, t.actor.Name))
	if err != nil {
		return err
	}
	voted := !b.CastAt.IsZero()
	if !voted {
		v.Electors-- // the broker withdraws the letter with the mailbox
	}
	line := summary(t.actor.Name, "left the electorate of", v)
	if v.Revision, err = t.append(leftEvent, v, line, map[string]any{"voted": voted}); err != nil {
		return err
	}
	t.tx.Exec(updateDeparted, v.Key, t.actor.Name)
	return t.settle(v)
}

// closeSome closes some votes of a closed session.
func (v *Votes) closeSome(tx *store.Tx, c *work.Chore) (more bool, err error) {
	open, err := all(tx, selectOpen, c.Session, c.After, mostVotes)
	if err != nil {
		return false, err
	}
	page := work.NewPage(tx)
	for i := range open {
		if page.Full() {
			return true, nil
		}
		t := &change{Votes: v, tx: tx, session: c.Session}
		if err := t.close(&open[i], SessionClosed, ""); err != nil {
			return false, fmt.Errorf("close vote %s: %w", open[i].ID(), err)
		}
		c.After = open[i].Key
	}
	return len(open) == mostVotes, nil
}

// announceSome withdraws some letters of a closed vote, or notifies its opener and some electors.
func (v *Votes) announceSome(tx *store.Tx, c *work.Chore) (more bool, err error) {
	found, err := all(tx, selectAny, c.Item)
	if err != nil || len(found) == 0 {
		return false, err
	}
	vote := &found[0]
	n, err := vote.notice()
	if err != nil {
		return false, err
	}
	if c.After == 0 {
		more, err := v.post.WithdrawSome(tx, vote.Session, work.Moot{About: vote.Key, Type: initiateType}, mostNotified)
		if err != nil || more {
			return more, err
		}
		if n.Agent = vote.Opener; n.Agent != identity.System {
			if err := v.post.Notify(tx, vote.Session, n); err != nil {
				return false, err
			}
		}
		c.After = 1
	}
	names, err := store.Collect(tx.Query(selectAudience, vote.Key, c.Text, mostNotified),
		func(r *store.Rows) (name string, err error) { return name, r.Scan(&name) })
	if err != nil {
		return false, err
	}
	for _, n.Agent = range names {
		if c.Text = n.Agent; n.Agent == vote.Opener {
			continue // it has its notice
		}
		if err := v.post.Notify(tx, vote.Session, n); err != nil {
			return false, err
		}
	}
	return len(names) == mostNotified, nil
}

// notice is the notice of a closed vote, without its recipient.
func (v *Vote) notice() (work.Notice, error) {
	payload, err := json.Marshal(v.announcement())
	return work.Notice{
		Type: announcementType, Subject: v.Title + ": " + v.result(), Payload: string(payload), Task: v.Task, About: v.Key,
	}, err
}

// AwaitClosed does what is left to do in a closed session, and returns when that is done.
func (v *Votes) AwaitClosed(ctx context.Context, session int64) error {
	return v.backlog.FinishSession(ctx, session)
}
