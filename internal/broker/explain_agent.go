package broker

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// ofAgent explains what stands in the way of an agent, what waits for it and what it works on.
func (e *explaining) ofAgent() error {
	member, registered, err := e.member(e.about.Name)
	if err != nil || !registered {
		return err
	}
	if err := e.gated(member.Name); err != nil {
		return err
	}
	ref := mailboxRef{agentBox, member.Name}
	id, waiting, err := e.waitingIn(ref)
	if err != nil {
		return err
	}
	f := finding.Finding{Severity: finding.Info, Subject: "mailbox " + ref.String()}
	unread, claimable, err := e.Counts(e.q, e.about.Session, member.Agent)
	if err != nil {
		return err
	}
	f.Summary = fmt.Sprintf("%s in it, %s unread; %s could be claimed there, of its role and of its channels", wait(waiting), upTo(unread), upTo(claimable))
	if waiting > 0 {
		if err := e.line(&f, ref, id); err != nil {
			return err
		}
		f.Commands = append(f.Commands, finding.Command{"--agent", member.Name, "inbox"})
	}
	e.add(f)
	if err := e.working(member.Name, id); err != nil {
		return err
	}
	if err := e.late(e.q.Query(selectLateOwed, e.about.Session, member.Name, id, mostOfAKind)); err != nil {
		return err
	}
	return e.late(e.q.Query(selectLateAsked, e.about.Session, member.Name, mostOfAKind))
}

// upTo formats a count that ends at MostCounted.
func upTo(n int64) string {
	if n >= MostCounted {
		return fmt.Sprintf("%d or more", MostCounted)
	}
	return strconv.FormatInt(n, 10)
}

// ofRole explains what waits for a role.
func (e *explaining) ofRole() error {
	if err := e.agents(); err != nil {
		return err
	}
	ref := mailboxRef{roleBox, e.about.Name}
	id, waiting, err := e.waitingIn(ref)
	if err != nil || id == 0 {
		return err
	}
	f := finding.Finding{Severity: finding.Info, Subject: "mailbox " + ref.String(), Summary: wait(waiting) + " in it"}
	if waiting > 0 {
		if err := e.line(&f, ref, id); err != nil {
			return err
		}
	}
	e.add(f)
	return nil
}

// waitingIn returns a mailbox's id, 0 if it does not exist yet, and how many wait in it.
func (e *explaining) waitingIn(ref mailboxRef) (id, waiting int64, err error) {
	err = e.q.QueryRow(selectWaitingOf, e.about.Session, int(ref.kind), ref.name).Scan(&id, &waiting)
	if errors.Is(err, store.ErrNoRows) {
		err = nil
	}
	return id, waiting, err
}

// wait says how many messages wait.
func wait(n int64) string {
	if n == 1 {
		return "1 message waits"
	}
	return fmt.Sprintf("%d messages wait", n)
}

// line adds to what is said of a mailbox what is to be said of the first in line, and of those who could take it.
func (e *explaining) line(f *finding.Finding, ref mailboxRef, id int64) error {
	var first int64
	var read bool
	err := e.q.QueryRow(selectFirstInLine, id).Scan(&first, &f.Since, &read)
	if errors.Is(err, store.ErrNoRows) {
		f.Summary += ", none of them ready: all are delayed or wait behind others"
		return nil
	}
	if err != nil {
		return err
	}
	sender := ""
	if ref.kind != agentBox {
		if sender, err = e.onlySender(first); err != nil {
			return err
		}
	}
	st, err := e.standing(ref, id, sender, false)
	if err != nil {
		return err
	}
	f.Reasons = append(f.Reasons, fmt.Sprintf("the first in line, message %d, was sent at %s", first, e.about.When(f.Since)))
	f.Reasons = append(f.Reasons, st.reasons...)
	f.Commands = append(f.Commands, st.commands...)
	switch {
	case st.says != "":
		f.Severity = st.severity
		f.Summary += ", and " + st.says
	case e.about.Now.Sub(f.Since) >= slowMail && !read:
		f.Severity = finding.Warning
		f.Summary += ", though somebody could take it"
		f.Commands = append(f.Commands, finding.Command{"agent", "nudge", ref.String()})
	}
	f.Commands = append(f.Commands, finding.Command{"explain", "message", strconv.FormatInt(first, 10)})
	return nil
}

// onlySender returns the sender of a message.
func (e *explaining) onlySender(message int64) (string, error) {
	m, err := findMessage(e.q, e.about.Session, Ref{Revision: message})
	return m.Sender, err
}

// working tells of the claims of an agent.
func (e *explaining) working(agent string, id int64) error {
	rows := e.q.Query(selectHoldersClaims, id, mostOfAKind)
	type claim struct {
		message int64
		number  int
		at      time.Time
	}
	var claims []claim
	total := 0
	for rows.Next() {
		var c claim
		if err := rows.Scan(&c.message, &c.number, &c.at, &total); err != nil {
			return err
		}
		claims = append(claims, c)
	}
	if err := rows.Err(); err != nil || total == 0 {
		return err
	}
	m, _, err := e.member(agent)
	if err != nil {
		return err
	}
	f := finding.Finding{Severity: finding.Info, Subject: "agent " + agent, Since: claims[0].at,
		Summary: "it works on " + finding.Count(total, "message")}
	held := e.about.Now.Sub(f.Since)
	if held >= longClaim || m.Health != Alive && held >= lateClaim {
		f.Severity = finding.Warning
		f.Summary += ", on one of them for " + finding.Rough(held)
	}
	if m.Health != Alive {
		f.Reasons = append(f.Reasons, "it was last heard of at "+e.about.When(m.LastSeen))
	}
	for _, c := range claims {
		says := fmt.Sprintf("message %d since %s", c.message, e.about.When(c.at))
		f.Reasons = append(f.Reasons, says)
		if e.about.Now.Sub(c.at) >= longClaim || f.Severity == finding.Warning && len(f.Commands) == 0 {
			f.Commands = append(f.Commands, finding.Command{"--agent", agent, "release", claimID(c.message, c.number)})
		}
	}
	f.Commands = append(f.Commands, finding.Command{"explain", "message", strconv.FormatInt(claims[0].message, 10)})
	e.add(f)
	return nil
}

// late tells of questions that are overdue.
func (e *explaining) late(rows *store.Rows) error {
	questions, err := readQuestions(rows, e.about.Now)
	if err != nil {
		return err
	}
	for i := range questions {
		if !questions[i].Overdue {
			continue // the clock was set back
		}
		m, err := findMessage(e.q, e.about.Session, Ref{Revision: questions[i].Revision})
		if err != nil {
			return err
		}
		all, err := e.deliveries(m.Revision, 0, mostServers)
		if err != nil {
			return err
		}
		f := e.overdue(&m, questions[i].Deadline, all)
		f.Commands = append(f.Commands, finding.Command{"explain", "message", strconv.FormatInt(m.Revision, 10)})
		e.add(f)
	}
	return nil
}
