package tasks

import (
	"fmt"

	"brokerd/internal/store"
)

// invariants are queries for tasks that must not exist, by id, and the meaning of each.
var invariants = []struct{ says, query string }{
	{"has a holder if and only if it is claimed or blocked, except when it is done", `
SELECT id FROM tasks
WHERE state IN (3, 4) AND (holder IS NULL OR fence IS NULL) OR state NOT IN (3, 4, 5) AND holder IS NOT NULL
LIMIT ?`},
	{"waits if and only if a dependency is not done", `
SELECT t.id FROM tasks t
WHERE (t.state = 1) <> (t.state < 5 AND EXISTS (
	SELECT 1 FROM task_dependencies d JOIN tasks n ON n.created = d.needs WHERE d.task = t.created AND n.state <> 5))
  AND t.state < 6
LIMIT ?`},
	{"counts the dependencies that are not done", `
SELECT t.id FROM tasks t
WHERE t.state < 5 AND t.missing <> (
	SELECT count(*) FROM task_dependencies d JOIN tasks n ON n.created = d.needs WHERE d.task = t.created AND n.state <> 5)
LIMIT ?`},
	{"has dependencies that exist", `
SELECT t.id FROM task_dependencies d JOIN tasks t ON t.created = d.task
WHERE t.state < 5 AND NOT EXISTS (SELECT 1 FROM tasks n WHERE n.created = d.needs)
LIMIT ?`},
	{"is in a queue that exists", `
SELECT t.id FROM tasks t WHERE NOT EXISTS (SELECT 1 FROM task_queues k WHERE k.id = t.queue)
LIMIT ?`},
	{"has an end if and only if it is finished", `
SELECT id FROM tasks WHERE (state >= 5) <> (finished_at IS NOT NULL) LIMIT ?`},
}

// Checks returns the functions that check the tables of this package, one for each invariant. Each
// returns the problems, one line each, at most most, and may be called while the broker runs.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	checks := make([]func(store.Querier) ([]string, error), 0, len(invariants))
	for _, i := range invariants {
		checks = append(checks, func(q store.Querier) ([]string, error) {
			var problems []string
			rows := q.Query(i.query, most)
			defer rows.Close()
			for rows.Next() {
				var id string
				if err := rows.Scan(&id); err != nil {
					return nil, err
				}
				problems = append(problems, fmt.Sprintf("task %q does not keep the rule that a task %s", id, i.says))
			}
			return problems, rows.Err()
		})
	}
	return checks
}
