package events

import (
	"fmt"

	"brokerd/internal/store"
)

// Checks returns what inspects the revisions of the log in one snapshot. A check returns one line per
// problem, at most so many.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	checks := make([]func(q store.Querier) ([]string, error), len(invariants))
	for i, v := range invariants {
		checks[i] = func(q store.Querier) (problems []string, err error) {
			rows := q.Query(v.query)
			defer rows.Close()
			for len(problems) < most && rows.Next() {
				var revision int64
				if err := rows.Scan(&revision); err != nil {
					return nil, err
				}
				problems = append(problems, fmt.Sprintf("revision %d: %s", revision, v.says))
			}
			return problems, rows.Err()
		}
	}
	return checks
}

var invariants = [...]struct{ says, query string }{
	{"an event is above the counter, which would issue its number again", `
		SELECT revision FROM events WHERE revision > (SELECT revision FROM meta)
		UNION ALL
		SELECT revision FROM messages WHERE revision > (SELECT revision FROM meta) AND recipients IS NOT NULL`},
	{"an event has a number that a restore has left out", `
		SELECT e.revision FROM restores r JOIN events e ON e.revision > r.last AND e.revision < r.next
		UNION ALL
		SELECT m.revision FROM restores r JOIN messages m ON m.revision > r.last AND m.revision < r.next
		WHERE m.recipients IS NOT NULL`},
	{"a message is an event, and another event has its number", `
		SELECT m.revision FROM messages m JOIN events e ON e.revision = m.revision WHERE m.recipients IS NOT NULL`},
	{"the counter has not passed the jump of this restore", `
		SELECT last FROM restores WHERE next > (SELECT revision FROM meta)`},
}
