package admission

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/router"
	"brokerd/internal/store"
)

// maxDirectives is how many unfinished directives one answer names, and how many halts one resume ends.
const maxDirectives = 100

// OnResumed adds a function that runs in the transaction in which a directive ends the halt of an agent. Call it before
// the control is used.
func (c *Control) OnResumed(hook func(tx *store.Tx, session int64, agent string) error) {
	c.resumed = append(c.resumed, hook)
}

// MayDirect implements router.Directives.
func (c *Control) MayDirect(from *mail.Actor, kind string) error {
	directors := from.Session.Settings.GetDirectors().GetNames()
	if from.System() || slices.Contains(directors, from.Role) {
		return nil
	}
	who := "operators"
	if len(directors) > 0 {
		who += " and agents with the role " + strings.Join(directors, " or ")
	}
	return fault.New(fault.Denied, "NOT_A_DIRECTOR",
		"%s is a directive, which only %s may send in session %q (setting directors); agent %q has the role %q",
		kind, who, from.Session.Name, from.Name, from.Role)
}

// Direct implements router.Directives. A halt halts its recipients. A resume ends their halts, and settles the earlier
// halts in their mailboxes. The other directives change nothing.
func (c *Control) Direct(
	tx *store.Tx, from *mail.Actor, d *mail.Draft, message int64, to []router.Directed,
) error {
	if d.Type != mail.HaltType && d.Type != mail.ResumeType {
		return nil
	}
	var changed []string
	for i := range to {
		agent := &to[i]
		n, err := int64(0), error(nil)
		if d.Type == mail.HaltType {
			n, err = tx.ExecCount(insertHalt, agent.Mailbox, message, tx.Now())
		} else {
			if err := c.endHalts(tx, from.Session.ID, agent, message); err != nil {
				return err
			}
			n, err = tx.ExecCount(deleteHalt, agent.Mailbox)
		}
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		changed = append(changed, agent.Name)
		if d.Type == mail.ResumeType {
			c.broker.Waiters.Reconsider(agent.Mailbox)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	c.Gates.kept.Clear(tx)
	if d.Type == mail.ResumeType {
		for _, name := range changed {
			for _, hook := range c.resumed {
				if err := hook(tx, from.Session.ID, name); err != nil {
					return err
				}
			}
		}
	}
	entry := from.Event("agent.halted")
	past := "halted"
	if d.Type == mail.ResumeType {
		entry.Type, past = "agent.resumed", "resumed"
	}
	entry.Category = events.Agent
	entry.Summary = finding.Count(len(changed), "agent") + " " + past
	if len(changed) == 1 {
		entry.Summary = changed[0] + " " + past
		entry.Related = changed
	}
	if d.Subject != "" {
		entry.Summary += ": " + d.Subject
	}
	names, _ := json.Marshal(changed) // names always marshal
	entry.Details = `{"agents":` + string(names) + `,"message":` + strconv.FormatInt(message, 10) + `}`
	_, err := c.log.Append(tx, entry)
	return err
}

// endHalts ends the unfinished halts in an agent's mailbox that are older than a resume, the oldest 100.
func (c *Control) endHalts(tx *store.Tx, session int64, agent *router.Directed, resume int64) error {
	type halt struct {
		id    mail.DeliveryID
		state mail.State
	}
	rows := tx.Query(selectHalts, agent.Mailbox, int64(mail.DirectiveRank), mail.HaltType, resume, maxDirectives)
	halts, err := store.Collect(rows, func(r *store.Rows) (h halt, err error) {
		var state int
		err = r.Scan(&h.id.Message, &h.id.Mailbox, &state)
		h.state = mail.State(state)
		return h, err
	})
	if err != nil {
		return err
	}
	s := c.broker.NewSettleTx(tx, mail.System(session))
	for _, h := range halts {
		if err := s.End(h.id, h.state, ""); err != nil {
			return err
		}
		if h.state.Waits() {
			agent.Ended++
		}
	}
	_, err = s.Finish()
	return err
}

// Directives returns the types of the unfinished directives in an agent's mailbox, oldest first, at most 100.
func (c *Control) Directives(q store.Querier, session int64, agent string) ([]string, error) {
	mailbox, err := c.broker.Mailboxes.Find(q, session, mail.AgentRef(agent))
	if err != nil {
		return nil, err
	}
	rows := q.Query(selectDirectiveTypes, mailbox, int64(mail.DirectiveRank), maxDirectives)
	return store.Collect(rows, func(r *store.Rows) (kind string, err error) { return kind, r.Scan(&kind) })
}
