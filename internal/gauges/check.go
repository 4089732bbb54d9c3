package gauges

import (
	"fmt"

	"brokerd/internal/store"
)

// Checks returns the checks of the core's tables, one for each invariant. A check returns one line for each delivery
// that breaks the invariant, at most most lines. It may run while the broker does.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	checks := make([]func(store.Querier) ([]string, error), 0, len(invariants))
	for _, i := range invariants {
		checks = append(checks, func(q store.Querier) ([]string, error) { return i.check(q, most) })
	}
	return checks
}

// Totals counts the messages and deliveries of all sessions.
func Totals(q store.Querier) (messages, deliveries int64, err error) {
	err = q.QueryRow(countTotals).Scan(&messages, &deliveries)
	return messages, deliveries, err
}

// An invariant is a query for the deliveries that break a rule, and what is wrong with them.
type invariant struct{ says, query string }

func (i invariant) check(q store.Querier, most int) (problems []string, err error) {
	rows := q.Query(i.query)
	for len(problems) < most && rows.Next() {
		var message, mailbox int64
		if err := rows.Scan(&message, &mailbox); err != nil {
			return nil, err
		}
		problems = append(problems, fmt.Sprintf("delivery of message %d in mailbox %d: %s", message, mailbox, i.says))
	}
	return problems, rows.Close()
}

var invariants = [...]invariant{
	{"it has no message", `
		SELECT d.message, d.mailbox FROM deliveries d LEFT JOIN messages m ON m.revision = d.message WHERE m.revision IS NULL`},
	{"it has no mailbox", `
		SELECT d.message, d.mailbox FROM deliveries d LEFT JOIN mailboxes b ON b.id = d.mailbox WHERE b.id IS NULL`},
	{"it is in no known state", `
		SELECT message, mailbox FROM deliveries WHERE state NOT BETWEEN 1 AND 9`},
	{"it is claimed by nobody, or was never claimed", `
		SELECT message, mailbox FROM deliveries WHERE state = 2 AND (holder IS NULL OR claims < 1 OR claimed_at IS NULL)`},
	{"it is finished without a time, or unfinished with one", `
		SELECT message, mailbox FROM deliveries WHERE (state BETWEEN 5 AND 8) <> (finished_at IS NOT NULL)`},
	{"it is delayed without a due time", `
		SELECT message, mailbox FROM deliveries WHERE state = 3 AND due_at IS NULL`},
	{"more attempts were counted than claims were made", `
		SELECT message, mailbox FROM deliveries WHERE attempts > claims`},
	{"it has used up its attempts and is no dead letter", `
		SELECT message, mailbox FROM deliveries WHERE state <= 4 AND attempts >= max_attempts`},
	{"Receive would not show it, or show what is finished", `
		SELECT d.message, d.mailbox FROM deliveries d JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.arrival IS NOT NULL AND (d.arrival > 0) <> (b.kind = 1 AND d.state IN (1, 2, 3, 4, 9))`},
	{"it is blocked and nothing is in front of it", `
		SELECT d.message, d.mailbox FROM deliveries d
		WHERE d.state = 4 AND NOT EXISTS (
			SELECT 1 FROM deliveries h
			WHERE h.mailbox = d.mailbox AND h.ordering_key = d.ordering_key AND h.state <= 3)`},
	{"another delivery with its ordering key is handed out at the same time", `
		SELECT d.message, d.mailbox FROM deliveries d
		WHERE d.ordering_key IS NOT NULL AND d.state <= 3 AND EXISTS (
			SELECT 1 FROM deliveries h
			WHERE h.mailbox = d.mailbox AND h.ordering_key = d.ordering_key AND h.state <= 3 AND h.message < d.message)`},
	{"its mailbox has miscounted what waits (message stands for the difference)", `
		SELECT b.waiting - COUNT(d.message), b.id FROM mailboxes b
		LEFT JOIN deliveries d ON d.mailbox = b.id AND d.state IN (1, 3, 4)
		GROUP BY b.id HAVING b.waiting <> COUNT(d.message)`},
	{"a failed attempt is missing in its history, or one too many is there", `
		SELECT d.message, d.mailbox FROM deliveries d
		WHERE d.attempts > (
			SELECT COUNT(*) FROM attempts a WHERE a.message = d.message AND a.mailbox = d.mailbox AND a.claim > 0)`},
}
