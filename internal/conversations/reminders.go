package conversations

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/mail"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// remindersPage is how many overdue questions, and how many resends, one function of the writer handles.
const remindersPage = 300

// Due implements broker.Timed: it reports overdue questions, and resends deliveries that no agent has noticed.
func (r *Registry) Due(tx *store.Tx) error {
	if err := r.reportOverdue(tx); err != nil {
		return err
	}
	return r.resendDue(tx)
}

// Next implements broker.Timed.
func (r *Registry) Next(q store.Querier) (time.Time, error) {
	var overdue, resend time.Time
	err := q.QueryRow(selectNextReminders).Scan(&overdue, &resend)
	return broker.Earliest(overdue, resend), err
}

// An overdueQuestion is a question whose deadline has passed.
type overdueQuestion struct {
	mail.Question
	session int64
	task    string
}

// reportOverdue reports each question whose deadline has passed once: by an event, and by a notice to
// the first of the session's escalation roles that a registered agent has.
func (r *Registry) reportOverdue(tx *store.Tx) error {
	var found []overdueQuestion
	rows := tx.Query(selectOverdue, tx.Now(), remindersPage)
	for rows.Next() {
		var q overdueQuestion
		var id []byte
		err := rows.Scan(&q.Revision, &q.session, &q.Deadline, &q.Thread, &id, &q.Sender, &q.CreatedAt, &q.task, &q.Content)
		if err != nil {
			return err
		}
		copy(q.ID[:], id)
		found = append(found, q)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for i := range found {
		if err := r.escalate(tx, &found[i]); err != nil {
			return err
		}
	}
	return nil
}

// escalate reports one question whose deadline has passed. In a closed session it reports nothing:
// nothing changes there.
func (r *Registry) escalate(tx *store.Tx, q *overdueQuestion) error {
	session, err := r.dir.ByID(tx, q.session)
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return err
	}
	revision := int64(0)
	if removed := q.Sender == ""; err == nil && !session.Closed() && !removed {
		role, err := r.escalation(tx, session)
		if err != nil {
			return err
		}
		entry := mail.System(q.session).Event("message.overdue")
		entry.Severity = events.Warning
		entry.Summary = fmt.Sprintf("message %d of %s has no response", q.Revision, q.Sender)
		entry.Related = []string{strconv.FormatInt(q.Revision, 10)}
		entry.TaskID = q.task
		entry.Details = fmt.Sprintf(`{"sender":%s,"deadline":%q,"escalated_to":%s}`,
			events.Quote(q.Sender), q.Deadline.Format(time.RFC3339Nano), events.Quote(role))
		if revision, err = r.log.Append(tx, entry); err != nil {
			return err
		}
		if err := r.notifier.Notify(tx, q.session, overdueNotice(role, q)); err != nil {
			return err
		}
	}
	tx.Exec(updateOverdue, revision, q.Revision)
	return nil
}

// overdueType is the type of the notice about a question that has no response in time.
const overdueType = "overdue"

// overdueNotice returns that notice, to all agents of a role.
func overdueNotice(role string, q *overdueQuestion) work.Notice {
	until := q.Deadline.Format(time.RFC3339)
	return work.Notice{
		Role: role, Type: overdueType, Task: q.task, About: q.Revision,
		Subject: fmt.Sprintf("message %d of %s has had no response by %s: %s", q.Revision, q.Sender, until, q.Subject()),
		Payload: `{"id":"` + q.ID.String() + `","revision":` + strconv.FormatInt(q.Revision, 10) +
			`,"sender":` + events.Quote(q.Sender) + `,"deadline":"` + until + `"}`,
	}
}

// escalation returns the first role of the session's that a registered agent has, or none.
func (r *Registry) escalation(tx *store.Tx, session directory.Session) (string, error) {
	for _, role := range session.Settings.GetEscalateTo().GetNames() {
		agents, err := r.dir.Matching(tx, session.ID, directory.Selection{Role: role, Most: 1})
		if err != nil || len(agents) > 0 {
			return role, err
		}
	}
	return "", nil
}
