package tasks

import (
	"encoding/json"
	"strconv"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A record is a task as an export and the archive have it.
type record struct {
	ID              string            `json:"id"`
	CreatedRevision int64             `json:"created_revision"`
	Revision        int64             `json:"revision"`
	Title           string            `json:"title"`
	Description     string            `json:"description"`
	Labels          map[string]string `json:"labels"`
	Priority        int               `json:"priority"`
	Role            string            `json:"role"`
	Assignee        string            `json:"assignee"`
	Capabilities    []string          `json:"capabilities"`
	DependsOn       []string          `json:"depends_on"`
	Parent          string            `json:"parent"`
	MaxAttempts     int               `json:"max_attempts"`
	StaleAfter      float64           `json:"stale_after_seconds"`
	Artifacts       []string          `json:"artifacts"`
	State           string            `json:"state"`
	Creator         string            `json:"creator"`
	Holder          string            `json:"holder"`
	Fence           int64             `json:"fence,omitempty"`
	Attempts        int               `json:"attempts"`
	Progress        float64           `json:"progress"`
	Note            string            `json:"note"`
	Error           string            `json:"error"`
	BlockReason     string            `json:"block_reason"`
	Result          string            `json:"result"`
	ResultArtifacts []string          `json:"result_artifacts"`
	History         []attemptRecord   `json:"history"`
	CreatedAt       time.Time         `json:"created_at"`
	ReadyAt         time.Time         `json:"ready_at,omitzero"`
	ClaimedAt       time.Time         `json:"claimed_at,omitzero"`
	UpdatedAt       time.Time         `json:"updated_at,omitzero"`
	BlockedAt       time.Time         `json:"blocked_at,omitzero"`
	FinishedAt      time.Time         `json:"finished_at,omitzero"`
	DueAt           time.Time         `json:"due_at,omitzero"`
}

type attemptRecord struct {
	Number    int       `json:"number"`
	Agent     string    `json:"agent"`
	ClaimedAt time.Time `json:"claimed_at"`
	EndedAt   time.Time `json:"ended_at"`
	Error     string    `json:"error"`
}

// line returns a task as one line of JSON, and about how many rows the task has in all tables.
func (t *Task) line(q store.Querier) (text []byte, rows int, err error) {
	if err := t.fill(q); err != nil {
		return nil, 0, err
	}
	history, err := readAttempts(q, t.Created)
	if err != nil {
		return nil, 0, err
	}
	r := record{
		ID: t.ID, CreatedRevision: t.Created, Revision: t.Revision, Title: t.Title, Description: t.Description, Labels: t.Labels,
		Priority: t.Priority, Role: t.Role, Assignee: t.Assignee, Capabilities: t.Capabilities, DependsOn: t.DependsOn,
		Parent: t.ParentID, MaxAttempts: t.MaxAttempts, StaleAfter: t.StaleAfter.Seconds(), Artifacts: t.Artifacts,
		State: t.State.String(), Creator: t.Creator, Holder: t.Holder, Fence: t.Fence, Attempts: t.Attempts, Progress: t.Progress,
		Note: t.Note, Error: t.Error, BlockReason: t.Reason, Result: t.Result, ResultArtifacts: t.ResultArtifacts,
		CreatedAt: t.CreatedAt, ReadyAt: t.ReadyAt, ClaimedAt: t.ClaimedAt, UpdatedAt: t.UpdatedAt, BlockedAt: t.BlockedAt,
		FinishedAt: t.FinishedAt, DueAt: t.DueAt,
	}
	for _, a := range history {
		r.History = append(r.History, attemptRecord(a))
	}
	text, err = json.Marshal(r)
	return text, 3 + t.needs + len(t.Labels) + len(history), err
}

// Records returns the tasks of a session, each as one line of JSON, after the mark of an earlier
// call's last line.
func (t *Tasks) Records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	sel := Selection{Limit: limit - 1}
	if sel.From, err = work.Position(after); err != nil {
		return nil, "", err
	}
	found, _, err := sel.read(q, session, 0, 0, mostRead)
	if err != nil {
		return nil, "", err
	}
	for _, task := range found {
		line, _, err := task.line(q)
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, line), strconv.FormatInt(task.Created, 10)
	}
	return lines, last, nil
}

// Erase removes up to about limit tasks of a session that is closed, or after them as many queues.
// It reports whether there may be more.
func (t *Tasks) Erase(tx *store.Tx, session int64, limit int) (bool, error) {
	sel := Selection{Limit: limit}
	found, _, err := sel.read(tx, session, 0, 0, mostRead)
	if err != nil {
		return false, err
	}
	page := work.NewPage(tx)
	for _, task := range found {
		if page.Full() {
			return true, nil
		}
		removeParts(tx, task.Created)
		tx.Exec(deleteTask, task.Created)
	}
	if len(found) > 0 {
		return true, nil
	}
	left, err := tx.ExecPage(limit, []string{deleteSomeQueues}, session)
	return left == 0, err
}

// removeParts removes everything that belongs to a task. Dependencies of others on it stay: these
// tasks have finished too, and take them along.
func removeParts(tx *store.Tx, task int64) {
	for _, statement := range []string{deleteTexts, deleteAttempts, deleteDependencies, deleteLabels} {
		tx.Exec(statement, task)
	}
}

// Forget drops the counts of a session without tasks and queues.
func (t *Tasks) Forget(tx *store.Tx, session int64) {
	t.queues.Delete(tx, session)
	t.unfinished.Delete(tx, session)
}

// Finished returns tasks that finished at or before a time and that no unfinished task needs, the
// oldest end first: at most limit.
func (t *Tasks) Finished(q store.Querier, session int64, before time.Time, limit int) ([]work.Done, error) {
	found, err := scanAll(q.Query(selectFinished, session, before, limit))
	if err != nil {
		return nil, err
	}
	var done []work.Done
	for total, i := 0, 0; i < len(found) && total <= mostRows/2; i++ {
		line, rows, err := found[i].line(q)
		if err != nil {
			return nil, err
		}
		total += rows
		done = append(done, work.Done{Key: found[i].Created, At: found[i].FinishedAt, Line: line})
	}
	return done, nil
}

// CountFinished counts the tasks that Finished returns without a limit.
func (t *Tasks) CountFinished(q store.Querier, session int64, before time.Time) (n int64, err error) {
	err = q.QueryRow(countFinished, session, before).Scan(&n)
	return n, err
}

// Remove removes tasks that Finished has returned, with everything that belongs to them. Errors:
// fault.Conflict if one of them is no longer finished, was removed, or is needed by an unfinished task.
func (t *Tasks) Remove(tx *store.Tx, session int64, keys []int64) error {
	for _, k := range keys {
		n, err := tx.ExecCount(deleteFinished, k, session)
		if err != nil {
			return err
		}
		if n == 0 {
			return fault.New(fault.Conflict, "TASK_CHANGED", "the task %d is not finished, was removed, or an unfinished task needs it", k)
		}
		removeParts(tx, k)
	}
	return nil
}
