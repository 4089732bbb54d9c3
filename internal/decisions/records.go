package decisions

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A record is a decision as an export and the archive have it.
type record struct {
	ID          string          `json:"id"`
	Kind        string          `json:"kind"`
	State       string          `json:"state"`
	OpenedBy    string          `json:"opened_by"`
	Agent       string          `json:"agent"`
	Role        string          `json:"role"`
	EscalatedTo string          `json:"escalated_to"`
	Title       string          `json:"title"`
	Scope       string          `json:"scope"`
	TaskID      string          `json:"task_id"`
	ThreadID    string          `json:"thread_id"`
	Body        string          `json:"body"`
	Payload     json.RawMessage `json:"payload"`
	Files       []File          `json:"files"`
	Artifacts   []string        `json:"artifacts"`
	Verdicts    []string        `json:"verdicts"`
	Round       int             `json:"round"`
	MaxRounds   int             `json:"max_rounds"`
	Deadline    *time.Time      `json:"deadline"`
	PassToken   bool            `json:"pass_token"`
	Verdict     string          `json:"verdict"`
	Rounds      []verdictRecord `json:"rounds"`
	Note        string          `json:"note"`
	OpenedAt    time.Time       `json:"opened_at"`
	ChangedAt   time.Time       `json:"changed_at"`
	Revision    int64           `json:"revision"`
}

// A verdictRecord is a verdict in a record.
type verdictRecord struct {
	Round     int        `json:"round"`
	Verdict   string     `json:"verdict"`
	DecidedBy string     `json:"decided_by"`
	DecidedAt time.Time  `json:"decided_at"`
	Reason    string     `json:"reason"`
	Feedback  []Feedback `json:"feedback"`
	Until     *time.Time `json:"until"`
	Escalated bool       `json:"escalated"`
	Revision  int64      `json:"revision"`
}

func (d *Decision) line() ([]byte, error) {
	r := record{
		ID: d.Name(), Kind: d.Kind.String(), State: d.State.String(), OpenedBy: d.OpenedBy, Agent: d.Agent, Role: d.Role,
		EscalatedTo: d.EscalatedTo, Title: d.Title, Scope: d.Scope, TaskID: d.Task, ThreadID: d.Thread, Body: d.Content.Body,
		Files: d.Content.Files, Artifacts: d.Content.Artifacts, Verdicts: d.Verdicts, Round: d.Round, MaxRounds: d.MaxRounds,
		Deadline: orNil(d.Deadline), PassToken: d.PassToken, Verdict: d.Verdict, Note: d.Note, OpenedAt: d.OpenedAt.UTC(),
		ChangedAt: d.ChangedAt.UTC(), Revision: d.Revision,
	}
	if d.Content.Payload != "" {
		r.Payload = json.RawMessage(d.Content.Payload)
	}
	for i := range d.Rounds {
		v := &d.Rounds[i]
		r.Rounds = append(r.Rounds, verdictRecord{
			Round: v.Round, Verdict: v.Verdict, DecidedBy: v.By, DecidedAt: v.At.UTC(), Reason: v.Reason, Feedback: v.Feedback,
			Until: orNil(v.Until), Escalated: v.Escalated, Revision: v.Revision,
		})
	}
	return json.Marshal(r)
}

// readRecords returns the decisions of a query with all columns, with all verdicts, and their lines.
func readRecords(q store.Querier, rows *store.Rows) (list []Decision, lines [][]byte, err error) {
	defer rows.Close()
	for rows.Next() {
		d, err := scanWhole(rows)
		if err != nil {
			return nil, nil, fmt.Errorf("read decisions: %w", err)
		}
		list = append(list, d)
	}
	if err := rows.Err(); err != nil {
		return nil, nil, err
	}
	for i, bytes := 0, 0; i < len(list) && bytes < work.RecordBytes; i++ {
		if err := list[i].readVerdicts(q, selectVerdicts); err != nil {
			return nil, nil, err
		}
		line, err := list[i].line()
		if err != nil {
			return nil, nil, err
		}
		lines = append(lines, line)
		bytes += len(line)
	}
	return list[:len(lines)], lines, nil
}

// Records returns the decisions of a session after an id, each as one line of JSON, and the last id.
func (t *Table) Records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	from, err := work.Position(after)
	if err != nil {
		return nil, "", err
	}
	list, lines, err := readRecords(q, q.Query(selectRecords, session, from, min(limit, 100)))
	if len(list) > 0 {
		last = strconv.FormatInt(list[len(list)-1].ID, 10)
	}
	return lines, last, err
}

// Finished returns decisions that finished at or before a time, the oldest end first.
func (t *Table) Finished(q store.Querier, session int64, before time.Time, limit int) ([]work.Done, error) {
	list, lines, err := readRecords(q, q.Query(selectFinished, session, before, limit))
	done := make([]work.Done, len(list))
	for i := range list {
		done[i] = work.Done{Key: list[i].ID, At: list[i].ChangedAt, Line: lines[i]}
	}
	return done, err
}

// CountFinished counts the decisions that Finished returns without a limit.
func (t *Table) CountFinished(q store.Querier, session int64, before time.Time) (n int64, err error) {
	err = q.QueryRow(countFinished, session, before).Scan(&n)
	return n, err
}

// Remove removes finished decisions. Errors: fault.Conflict if one of them is not there any more.
func (t *Table) Remove(tx *store.Tx, session int64, keys []int64) error {
	for _, id := range keys {
		removed, err := tx.ExecCount(deleteFinished, id, session)
		if err != nil {
			return err
		}
		if removed == 0 {
			return fault.New(fault.Conflict, "DECISION_CHANGED", "%s is not finished or was removed", work.ID(idLetter, id))
		}
		tx.Exec(deleteVerdicts, id)
	}
	return nil
}

// Erase removes up to limit decisions of a session that is being deleted, and reports whether there
// may be more. It stops earlier once it has removed many verdicts.
func (t *Table) Erase(tx *store.Tx, session int64, limit int) (bool, error) {
	ids, err := store.Collect(tx.Query(selectIDs, session, limit),
		func(r *store.Rows) (id int64, err error) { return id, r.Scan(&id) })
	if err != nil {
		return false, err
	}
	page := work.NewPage(tx)
	for _, id := range ids {
		if page.Full() {
			return true, nil
		}
		for _, statement := range []string{deleteVerdicts, deleteAny} {
			tx.Exec(statement, id)
		}
	}
	return len(ids) == limit, nil
}
