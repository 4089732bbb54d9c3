package tasks

import (
	"fmt"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// isMissing says that a task waits for a dependency n, by the row d: it is not done, or the backlog
// has yet to tell the task.
const isMissing = `(n.state <> 5 OR EXISTS (
	SELECT 1 FROM work_backlog b
	WHERE b.feature = 'tasks' AND b.item = d.needs AND b.kind = 'supply' AND b.after < d.task AND b.bound >= d.task))`

// damagedLabels and damagedCapabilities are conditions for columns that a claim cannot read.
const (
	damagedLabels       = `CASE WHEN json_valid(t.labels) THEN json_type(t.labels) <> 'object' ELSE t.labels IS NOT NULL END`
	damagedCapabilities = `CASE WHEN json_valid(t.capabilities) THEN json_type(t.capabilities) <> 'array' ELSE t.capabilities IS NOT NULL END`
)

// invariants are the rules of tasks.
var invariants = []work.Invariant{
	{Says: "it has a holder if and only if it is claimed or blocked, except when it is done", Query: `
SELECT id FROM tasks
WHERE state IN (3, 4) AND (holder IS NULL OR fence IS NULL) OR state NOT IN (3, 4, 5) AND holder IS NOT NULL`},
	{Says: "it waits if and only if a dependency is not done", Query: `
SELECT t.id FROM tasks t
WHERE (t.state = 1) <> (t.state < 5 AND EXISTS (
	SELECT 1 FROM task_dependencies d JOIN tasks n ON n.created = d.needs WHERE d.task = t.created AND ` + isMissing + `))
  AND t.state < 6`},
	{Says: "it counts the dependencies that are not done", Query: `
SELECT t.id FROM tasks t
WHERE t.state < 5 AND t.missing <> (
	SELECT count(*) FROM task_dependencies d JOIN tasks n ON n.created = d.needs WHERE d.task = t.created AND ` + isMissing + `)`},
	{Says: "it is in a queue that exists", Query: `
SELECT t.id FROM tasks t WHERE t.state < 5 AND NOT EXISTS (SELECT 1 FROM task_queues k WHERE k.id = t.queue)`},
	{Says: "its labels are indexed if and only if a claim can take it", Query: `
SELECT t.id FROM tasks t
WHERE (t.state = 2 AND t.due_at IS NULL AND t.labels IS NOT NULL) <> EXISTS (
	SELECT 1 FROM task_labels l WHERE l.task = t.created AND l.queue = t.queue AND l.rank = t.rank)`},
	{Says: "its labels and its capabilities are readable, as a claim needs them", Query: `
SELECT t.id FROM tasks t WHERE ` + damagedLabels + ` OR ` + damagedCapabilities},
	{Says: "the capabilities of its queue are readable", Query: `
SELECT t.id FROM tasks t JOIN task_queues k ON k.id = t.queue
WHERE t.state < 5 AND CASE WHEN json_valid(k.capabilities) THEN json_type(k.capabilities) <> 'array' ELSE k.capabilities <> '' END`},
	{Says: "it has an end if and only if it is finished", Query: `
SELECT id FROM tasks WHERE (state >= 5) <> (finished_at IS NOT NULL)`},
}

// Checks returns the checks of the tables; see work.Checks.
func Checks(most int) []func(q store.Querier) ([]string, error) {
	return work.Checks(most, invariants, func(id string) string {
		return fmt.Sprintf("task %q breaks a rule of tasks", id)
	})
}
