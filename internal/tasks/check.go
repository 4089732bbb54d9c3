package tasks

import (
	"fmt"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// invariants are the rules of tasks.
var invariants = []work.Invariant{
	{Says: "it has a holder if and only if it is claimed or blocked, except when it is done", Query: `
SELECT id FROM tasks
WHERE state IN (3, 4) AND (holder IS NULL OR fence IS NULL) OR state NOT IN (3, 4, 5) AND holder IS NOT NULL`},
	{Says: "it waits if and only if a dependency is not done", Query: `
SELECT t.id FROM tasks t
WHERE (t.state = 1) <> (t.state < 5 AND EXISTS (
	SELECT 1 FROM task_dependencies d JOIN tasks n ON n.created = d.needs WHERE d.task = t.created AND n.state <> 5))
  AND t.state < 6`},
	{Says: "it counts the dependencies that are not done", Query: `
SELECT t.id FROM tasks t
WHERE t.state < 5 AND t.missing <> (
	SELECT count(*) FROM task_dependencies d JOIN tasks n ON n.created = d.needs WHERE d.task = t.created AND n.state <> 5)`},
	{Says: "it has dependencies that exist", Query: `
SELECT t.id FROM task_dependencies d JOIN tasks t ON t.created = d.task
WHERE t.state < 5 AND NOT EXISTS (SELECT 1 FROM tasks n WHERE n.created = d.needs)`},
	{Says: "it is in a queue that exists", Query: `
SELECT t.id FROM tasks t WHERE NOT EXISTS (SELECT 1 FROM task_queues k WHERE k.id = t.queue)`},
	{Says: "it has an end if and only if it is finished", Query: `
SELECT id FROM tasks WHERE (state >= 5) <> (finished_at IS NOT NULL)`},
}

// Checks returns the checks of the tables; see work.Checks.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	return work.Checks(most, invariants, func(id string) string { return fmt.Sprintf("task %q breaks a rule of tasks", id) })
}
