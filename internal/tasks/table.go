package tasks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/jsonform"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A table has the rows of the tasks, which have a table of their own: the columns of their queues are not those of
// other work. Its methods may be called concurrently, those with a transaction by the function of the writer that
// has it.
type table struct {
	*work.Desk
	Backlog  *work.Backlog
	calendar *work.Calendar
	hub      *work.Hub[key]
	damaged  map[int64]bool // keys of tasks and queues that were found damaged, of the writer alone; see skip
}

// scanner is a row of a query.
type scanner interface{ Scan(dest ...any) error }

// scan reads the columns of taskColumns. If the error IsDamage, the task has its other columns.
func scan(r scanner) (*task, error) {
	var t task
	var rank, state int32
	var labels, capabilities string
	err := r.Scan(&t.CreatedRevision, &t.session, &t.Id, &t.Title, &labels, &rank, &t.Role, &t.Assignee, &capabilities,
		&t.parent, &t.MaxAttempts, &t.staleAfter, &t.Creator, &t.queue, &t.texts, &t.needs, &state, &t.Revision, &t.entered,
		&t.missing, &t.Holder, &t.Fence, &t.Attempts, &t.Progress, &t.Note, &t.Error, &t.BlockReason, &t.unblocked,
		&t.createdAt, &t.readyAt, &t.claimedAt, &t.updatedAt, &t.blockedAt, &t.finishedAt, &t.due)
	if err != nil {
		return nil, err
	}
	t.Priority, t.State = 10-rank, pb.TaskState(state)
	if err := fromJSON(labels, &t.Labels); err != nil {
		return &t, err
	}
	t.indexed = t.claimable() && len(t.Labels) > 0
	return &t, fromJSON(capabilities, &t.Capabilities)
}

// scanAll reads tasks.
func scanAll(rows *store.Rows) ([]*task, error) {
	return store.Collect(rows, func(r *store.Rows) (*task, error) { return scan(r) })
}

// skip reports whether an error is the damage of one row, which must not stop the work on others. It
// logs the damage once; "brokerd check" finds it.
func (t *table) skip(what string, key int64, err error) bool {
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
func (t *table) scanSound(rows *store.Rows) (sound []*task, read int, err error) {
	defer rows.Close()
	for ; rows.Next(); read++ {
		task, err := scan(rows)
		switch {
		case err == nil:
			sound = append(sound, task)
		case task == nil || !t.skip(noun, task.CreatedRevision, err):
			return nil, read, err
		}
	}
	return sound, read, rows.Err()
}

// scanBrief reads the columns of a brief.
func scanBrief(r scanner) (*pb.TaskBrief, error) {
	b := &pb.TaskBrief{}
	var state int32
	err := r.Scan(&b.Id, &b.Title, &state, &b.Holder, &b.Revision)
	if b.State = pb.TaskState(state); !held(b.State) {
		b.Holder = ""
	}
	return b, err
}

func scanBriefs(rows *store.Rows) ([]*pb.TaskBrief, error) {
	return store.Collect(rows, func(r *store.Rows) (*pb.TaskBrief, error) { return scanBrief(r) })
}

func scanKeys(rows *store.Rows) ([]int64, error) {
	return store.Collect(rows, func(r *store.Rows) (k int64, err error) { return k, r.Scan(&k) })
}

// byKey returns the task with a key; nil if there is none.
func byKey(q store.Querier, key int64) (*task, error) {
	t, err := scan(q.QueryRow(selectTask, key))
	if errors.Is(err, store.ErrNoRows) {
		return nil, nil
	}
	return t, err
}

// lookup finds a task of a session by its id or by the revision that created it; nil if there is
// none.
func lookup(q store.Querier, session int64, id string) (*task, error) {
	t, err := scan(q.QueryRow(selectByID, session, id))
	if errors.Is(err, store.ErrNoRows) {
		revision, bad := strconv.ParseInt(id, 10, 64)
		if bad != nil {
			return nil, nil
		}
		if t, err = byKey(q, revision); t != nil && t.session != session {
			return nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look up task %s: %w", id, err)
	}
	return t, nil
}

// find is lookup for a task that must exist: fault.NotFound.
func find(q store.Querier, session int64, id string) (*task, error) {
	t, err := lookup(q, session, id)
	if t == nil && err == nil {
		err = work.Missing(noun, id)
	}
	return t, err
}

// save stores what changes in the course of a task's life.
func (t *task) save(tx *store.Tx) {
	tx.Exec(updateTask, int32(t.State), t.Revision, t.entered, t.missing, orNull(t.Holder), numberOrNull(t.Fence),
		t.Attempts, t.Progress, orNull(t.Note), orNull(t.Error), orNull(t.BlockReason), t.unblocked, t.readyAt,
		t.claimedAt, t.updatedAt, t.blockedAt, t.finishedAt, t.due,
		t.CreatedRevision)
	if t.indexed != (t.claimable() && len(t.Labels) > 0) {
		t.relabel(tx)
	}
}

// fill reads what is stored beside the task: long texts, dependencies and the parent's id.
func (t *task) fill(q store.Querier) error {
	if !t.texts {
		_, err := t.relate(q)
		return err
	}
	var artifacts, results string
	err := q.QueryRow(selectTexts, t.CreatedRevision).Scan(&t.Description, &artifacts, &t.Result, &results)
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return fmt.Errorf("read texts of task %s: %w", t.Id, err)
	}
	if err := errors.Join(fromJSON(artifacts, &t.Artifacts), fromJSON(results, &t.ResultArtifacts)); err != nil {
		return err
	}
	_, err = t.relate(q)
	return err
}

// relate reads the ids of the dependencies and the parent, and the dependency that the task waits
// for. It returns the dependencies.
func (t *task) relate(q store.Querier) (needs []*pb.TaskBrief, err error) {
	if t.needs > 0 {
		if needs, err = scanBriefs(q.Query(selectDependencies, t.CreatedRevision)); err != nil {
			return nil, fmt.Errorf("read dependencies of task %s: %w", t.Id, err)
		}
	}
	t.DependsOn = make([]string, len(needs))
	for i, n := range needs {
		t.DependsOn[i] = n.Id
	}
	if t.parent != 0 {
		parent, err := scanBrief(q.QueryRow(selectBrief, t.parent))
		if err != nil && !errors.Is(err, store.ErrNoRows) {
			return nil, fmt.Errorf("read parent of task %s: %w", t.Id, err)
		}
		t.Parent = parent.Id
	}
	if t.State == waiting {
		t.WaitsFor = obstacle(needs)
	}
	return needs, nil
}

// obstacle returns the dependency that stops a task: one that has failed or was cancelled, otherwise
// the first that is not DONE; nil if there is none.
func obstacle(needs []*pb.TaskBrief) (first *pb.TaskBrief) {
	for _, n := range needs {
		switch {
		case n.State == failed || n.State == cancelled:
			return n
		case n.State != done && first == nil:
			first = n
		}
	}
	return first
}

// putText stores one of the long texts.
func (t *task) putText(tx *store.Tx, statement string, args ...any) {
	if !t.texts {
		tx.Exec(updateTexts, t.CreatedRevision)
		t.texts = true
	}
	tx.Exec(statement, append([]any{t.CreatedRevision}, args...)...)
}

// readAttempts reads the failed attempts of a task, oldest first, at most mostListed.
func readAttempts(q store.Querier, task int64) ([]*pb.TaskAttempt, error) {
	return store.Collect(q.Query(selectAttempts, task, mostListed), func(r *store.Rows) (*pb.TaskAttempt, error) {
		a := &pb.TaskAttempt{}
		var claimedAt, endedAt time.Time
		err := r.Scan(&a.Number, &a.Agent, &claimedAt, &endedAt, &a.Error)
		a.ClaimedAt, a.EndedAt = work.Stamp(claimedAt), work.Stamp(endedAt)
		return a, err
	})
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

// Counts counts the unfinished and the failed tasks of a session by state.
func (t *table) Counts(q store.Querier, session int64) (all []work.Count, err error) {
	for _, state := range []pb.TaskState{waiting, ready, claimed, blocked, failed} {
		c := work.Count{Kind: noun, State: word(state)}
		if err := q.QueryRow(countState, session, int32(state), work.MostCounted).Scan(&c.N); err != nil {
			return nil, err
		}
		if c.N > 0 {
			all = append(all, c)
		}
	}
	return all, nil
}

// ArtifactMentions finds which of the texts tasks of a session have as an artifact, as work.Mentions.
func (t *table) ArtifactMentions(
	q store.Querier, session, after int64, texts *work.Texts,
) (last int64, more bool, err error) {
	return work.Mentions(q.Query(selectArtifactLists, session, after), after, texts)
}

// line returns what exports and the archive have of a task, the answer of GetTask without other work, and about how
// many rows the task has in all tables.
func (t *task) line(q store.Querier) (text []byte, rows int, err error) {
	if err := t.fill(q); err != nil {
		return nil, 0, err
	}
	history, err := readAttempts(q, t.CreatedRevision)
	if err != nil {
		return nil, 0, err
	}
	var b bytes.Buffer
	record := &pb.GetTaskResponse{Task: t.answer(), History: history, Revision: t.Revision}
	err = jsonform.Append(&b, record, "dependencies", "dependents", "subtasks", "references")
	return b.Bytes(), 3 + t.needs + len(t.Labels) + len(history), err
}

// Records returns the tasks of a session, each as one line of JSON, after the mark of an earlier
// call's last line.
func (t *table) Records(
	q store.Querier, session int64, after string, limit int,
) (lines [][]byte, last string, err error) {
	from, err := work.Position(after)
	if err != nil {
		return nil, "", err
	}
	found, err := scanAll(q.Query(selectRecords, session, from, limit))
	if err != nil {
		return nil, "", err
	}
	for _, task := range found {
		line, _, err := task.line(q)
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, line), strconv.FormatInt(task.CreatedRevision, 10)
	}
	return lines, last, nil
}

// Erase removes up to about limit tasks of a session that is closed, or after them as many queues.
// It reports whether there may be more.
func (t *table) Erase(tx *store.Tx, session int64, limit int) (bool, error) {
	keys, err := scanKeys(tx.Query(selectKeys, session, limit))
	if err != nil {
		return false, err
	}
	page := work.NewPage(tx)
	for _, k := range keys {
		if page.Full() {
			return true, nil
		}
		removeParts(tx, k)
		tx.Exec(deleteTask, k)
	}
	if len(keys) > 0 {
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

// Finished returns tasks that finished at or before a time and that no unfinished task needs, the
// oldest end first: at most limit.
func (t *table) Finished(q store.Querier, session int64, before time.Time, limit int) (done []work.Done, err error) {
	found, err := scanAll(q.Query(selectFinished, session, before, limit))
	if err != nil {
		return nil, err
	}
	for total, i := 0, 0; i < len(found) && total <= mostRows/2; i++ {
		line, rows, err := found[i].line(q)
		if err != nil {
			return nil, err
		}
		total += rows
		done = append(done, work.Done{
			Key: found[i].CreatedRevision, At: found[i].finishedAt, Line: line, Revision: found[i].Revision,
		})
	}
	return done, nil
}

// CountFinished counts the tasks that Finished returns without a limit.
func (t *table) CountFinished(q store.Querier, session int64, before time.Time) (n int64, err error) {
	err = q.QueryRow(countFinished, session, before).Scan(&n)
	return n, err
}

// Remove removes tasks that Finished has returned, with everything that belongs to them. Errors:
// fault.Conflict if one of them is no longer finished, was removed, or is needed by an unfinished task.
func (t *table) Remove(tx *store.Tx, session int64, done []work.Done) error {
	for i := range done {
		n, err := tx.ExecCount(deleteFinished, done[i].Key, session)
		if err != nil {
			return err
		}
		if n == 0 {
			return fault.New(fault.Conflict, "TASK_CHANGED",
				"the task %d is not finished, was removed, or an unfinished task needs it", done[i].Key)
		}
		removeParts(tx, done[i].Key)
	}
	return nil
}
