package tasks

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"go.uber.org/zap"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// scanner is a row of a query.
type scanner interface{ Scan(dest ...any) error }

// scan reads the columns of taskColumns. If the error IsDamage, the task has its other columns.
func scan(r scanner) (*Task, error) {
	var t Task
	var rank, state int
	var labels, capabilities string
	err := r.Scan(&t.Created, &t.Session, &t.ID, &t.Title, &labels, &rank, &t.Role, &t.Assignee, &capabilities, &t.Parent,
		&t.MaxAttempts, &t.StaleAfter, &t.Creator, &t.CreatorRole, &t.queue, &t.texts, &t.needs, &state, &t.Revision, &t.Entered, &t.Missing,
		&t.Holder, &t.Fence, &t.Attempts, &t.Progress, &t.Note, &t.Error, &t.Reason, &t.Unblocked, &t.CreatedAt,
		&t.ReadyAt, &t.ClaimedAt, &t.UpdatedAt, &t.BlockedAt, &t.FinishedAt, &t.DueAt)
	if err != nil {
		return nil, err
	}
	t.Priority, t.State = 10-rank, State(state)
	if err := fromJSON(labels, &t.Labels); err != nil {
		return &t, err
	}
	t.indexed = t.State == Ready && t.DueAt.IsZero() && len(t.Labels) > 0
	return &t, fromJSON(capabilities, &t.Capabilities)
}

// scanAll reads tasks.
func scanAll(rows *store.Rows) ([]*Task, error) {
	defer rows.Close()
	var all []*Task
	for rows.Next() {
		t, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, rows.Err()
}

// skip reports whether an error is the damage of one row, which must not stop the work on others. It
// logs the damage once; "brokerd check" finds it.
func (t *Tasks) skip(what string, key int64, err error) bool {
	if !work.IsDamage(err) {
		return false
	}
	if !t.damaged[key] {
		t.damaged[key] = true
		t.Log.Error("a row has damaged JSON, and no claim takes it: run brokerd check",
			zap.String("what", what), zap.Int64("key", key), zap.Error(err))
	}
	return true
}

// scanSound reads tasks, without damaged ones. It returns how many rows it has read.
func (t *Tasks) scanSound(rows *store.Rows) (sound []*Task, read int, err error) {
	defer rows.Close()
	for ; rows.Next(); read++ {
		task, err := scan(rows)
		switch {
		case err == nil:
			sound = append(sound, task)
		case task == nil || !t.skip(Kind, task.Created, err):
			return nil, read, err
		}
	}
	return sound, read, rows.Err()
}

// scanBrief reads the columns of a brief.
func scanBrief(r scanner) (Brief, error) {
	var b Brief
	var state int
	err := r.Scan(&b.ID, &b.Title, &state, &b.Holder, &b.Revision)
	if b.State = State(state); !b.State.held() {
		b.Holder = ""
	}
	return b, err
}

func scanBriefs(rows *store.Rows) ([]Brief, error) {
	defer rows.Close()
	var all []Brief
	for rows.Next() {
		b, err := scanBrief(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, rows.Err()
}

// lookup finds a task of a session by its id or by the revision that created it; nil if there is
// none.
func lookup(q store.Querier, session int64, id string) (*Task, error) {
	t, err := scan(q.QueryRow(selectByID, session, id))
	if errors.Is(err, store.ErrNoRows) {
		if revision, bad := strconv.ParseInt(id, 10, 64); bad == nil {
			if t, err = scan(q.QueryRow(selectTask, revision)); err == nil && t.Session != session {
				return nil, nil
			}
		}
	}
	if errors.Is(err, store.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up task %s: %w", id, err)
	}
	return t, nil
}

// find is lookup for a task that must exist: fault.NotFound.
func find(q store.Querier, session int64, id string) (*Task, error) {
	t, err := lookup(q, session, id)
	if t == nil && err == nil {
		err = work.Missing(Kind, id)
	}
	return t, err
}

// save stores what changes in the course of a task's life.
func (t *Task) save(tx *store.Tx) {
	tx.Exec(updateTask, int64(t.State), t.Revision, t.Entered, t.Missing, orNull(t.Holder), numberOrNull(t.Fence),
		t.Attempts, t.Progress, orNull(t.Note), orNull(t.Error), orNull(t.Reason), t.Unblocked, t.ReadyAt, t.ClaimedAt,
		t.UpdatedAt, t.BlockedAt, t.FinishedAt, t.DueAt, t.Created)
	if t.indexed != (t.State == Ready && t.DueAt.IsZero() && len(t.Labels) > 0) {
		t.relabel(tx)
	}
}

// fill reads what is stored beside the task: long texts, dependencies and the parent's id.
func (t *Task) fill(q store.Querier) error {
	if !t.texts {
		_, err := t.relate(q)
		return err
	}
	var artifacts, results string
	err := q.QueryRow(selectTexts, t.Created).Scan(&t.Description, &artifacts, &t.Result, &results)
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return fmt.Errorf("read texts of task %s: %w", t.ID, err)
	}
	if err := errors.Join(fromJSON(artifacts, &t.Artifacts), fromJSON(results, &t.ResultArtifacts)); err != nil {
		return err
	}
	_, err = t.relate(q)
	return err
}

// relate reads the ids of the dependencies and the parent, and the dependency that the task waits
// for. It returns the dependencies.
func (t *Task) relate(q store.Querier) ([]Brief, error) {
	var needs []Brief
	if t.needs > 0 {
		var err error
		if needs, err = scanBriefs(q.Query(selectDependencies, t.Created)); err != nil {
			return nil, fmt.Errorf("read dependencies of task %s: %w", t.ID, err)
		}
	}
	t.DependsOn = make([]string, len(needs))
	for i, n := range needs {
		t.DependsOn[i] = n.ID
	}
	if t.Parent != 0 {
		parent, err := scanBrief(q.QueryRow(selectBrief, t.Parent))
		if err != nil && !errors.Is(err, store.ErrNoRows) {
			return nil, fmt.Errorf("read parent of task %s: %w", t.ID, err)
		}
		t.ParentID = parent.ID
	}
	if t.State == Waiting {
		t.WaitsFor = obstacle(needs)
	}
	return needs, nil
}

// obstacle returns the dependency that stops a task: one that has failed or was cancelled, otherwise
// the first that is not DONE; nil if there is none.
func obstacle(needs []Brief) *Brief {
	var first *Brief
	for i := range needs {
		switch n := &needs[i]; {
		case n.State == Failed || n.State == Cancelled:
			return n
		case n.State != Done && first == nil:
			first = n
		}
	}
	return first
}

// putText stores one of the long texts.
func (t *Task) putText(tx *store.Tx, statement string, args ...any) {
	if !t.texts {
		tx.Exec(updateTexts, t.Created)
		t.texts = true
	}
	tx.Exec(statement, append([]any{t.Created}, args...)...)
}

// fromJSON reads a column that is NULL for nothing.
func fromJSON(text string, into any) error {
	if text == "" {
		return nil
	}
	return json.Unmarshal([]byte(text), into)
}

// toJSON writes a list or map of strings, which can always be marshalled; NULL if it is empty.
func toJSON(n int, v any) any {
	if n == 0 {
		return nil
	}
	text, _ := json.Marshal(v)
	return string(text)
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func numberOrNull(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

// readAttempts reads the failed attempts of a task, oldest first, at most mostListed.
func readAttempts(q store.Querier, task int64) ([]Attempt, error) {
	var all []Attempt
	rows := q.Query(selectAttempts, task, mostListed)
	defer rows.Close()
	for rows.Next() {
		var a Attempt
		if err := rows.Scan(&a.Number, &a.Agent, &a.ClaimedAt, &a.EndedAt, &a.Error); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, rows.Err()
}
