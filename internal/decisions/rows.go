package decisions

import (
	"encoding/json"
	"errors"
	"fmt"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// row is what Row and Rows have in common.
type row interface{ Scan(dest ...any) error }

// scan reads a decision; more are the destinations of columns that follow those of headColumns.
func scan(r row, more ...any) (d Decision, err error) {
	var kind, state int
	var verdicts string
	err = r.Scan(append([]any{&d.ID, &d.Session, &kind, &state, &d.OpenedBy, &d.Agent, &d.Role, &d.EscalatedTo, &d.Title, &d.Scope,
		&d.Task, &d.Thread, &verdicts, &d.Round, &d.MaxRounds, &d.Deadline, &d.PassToken, &d.Fence, &d.Verdict, &d.Note,
		&d.OpenedAt, &d.ChangedAt, &d.Revision, &d.MessageType, &d.OutcomeType}, more...)...)
	if err != nil {
		return d, err
	}
	d.Kind, d.State = Kind(kind), State(state)
	return d, json.Unmarshal([]byte(verdicts), &d.Verdicts)
}

// scanWhole reads a decision with its content.
func scanWhole(r row) (Decision, error) {
	var c Content
	var files, artifacts []byte
	d, err := scan(r, &c.Body, &c.Payload, &files, &artifacts)
	if err != nil {
		return d, err
	}
	if d.Content = c; len(files) > 0 {
		err = json.Unmarshal(files, &d.Content.Files)
	}
	if len(artifacts) > 0 && err == nil {
		err = json.Unmarshal(artifacts, &d.Content.Artifacts)
	}
	return d, err
}

// find returns a decision of a session with its content and all verdicts.
func find(q store.Querier, session int64, id string) (Decision, error) {
	number, err := work.ParseID("decision", idLetter, id)
	if err != nil {
		return Decision{}, err
	}
	d, err := scanWhole(q.QueryRow(selectDecision, number, session))
	if errors.Is(err, store.ErrNoRows) {
		return d, work.Missing("decision", id)
	}
	if err != nil {
		return d, fmt.Errorf("read decision %s: %w", id, err)
	}
	return d, d.readVerdicts(q, selectVerdicts)
}

// readAll returns the decisions of a query with headColumns.
func readAll(rows *store.Rows) (list []Decision, err error) {
	defer rows.Close()
	for rows.Next() {
		d, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("read decisions: %w", err)
		}
		list = append(list, d)
	}
	return list, rows.Err()
}

// readVerdicts reads verdicts with one of the queries for them. more are the query's arguments after
// the id.
func (d *Decision) readVerdicts(q store.Querier, query string, more ...any) error {
	rows := q.Query(query, append([]any{d.ID}, more...)...)
	defer rows.Close()
	d.Rounds = nil
	for rows.Next() {
		var v Verdict
		var feedback []byte
		err := rows.Scan(&v.Revision, &v.Round, &v.Escalated, &v.Verdict, &v.By, &v.At, &v.Reason, &feedback, &v.Until)
		if err == nil && len(feedback) > 0 {
			err = json.Unmarshal(feedback, &v.Feedback)
		}
		if err != nil {
			return fmt.Errorf("read verdicts of %s: %w", d.Name(), err)
		}
		d.Rounds = append(d.Rounds, v)
	}
	return rows.Err()
}

// insert adds the row of a decision.
func (d *Decision) insert(tx *store.Tx) error {
	verdicts, err := json.Marshal(d.Verdicts)
	if err != nil {
		return err
	}
	content, err := d.Content.columns()
	if err != nil {
		return err
	}
	tx.Exec(insertDecision, append([]any{d.ID, d.Session, int(d.Kind), int(d.State), d.OpenedBy, orNull(d.Agent), orNull(d.Role),
		orNull(d.EscalatedTo), d.Title, orNull(d.Scope), orNull(d.Task), d.Thread, string(verdicts), d.Round, d.MaxRounds, d.Deadline,
		d.PassToken, d.Fence, orNull(d.Verdict), orNull(d.Note), d.OpenedAt, d.ChangedAt, d.Revision, d.MessageType, d.OutcomeType}, content...)...)
	return nil
}

// save updates the row of a decision, without its content.
func (d *Decision) save(tx *store.Tx) {
	tx.Exec(updateDecision, int(d.State), orNull(d.EscalatedTo), d.Round, d.Deadline, d.PassToken, d.Fence,
		orNull(d.Verdict), orNull(d.Note), d.ChangedAt, d.Revision, d.ID)
}

// saveContent updates the title and the content.
func (d *Decision) saveContent(tx *store.Tx) error {
	content, err := d.Content.columns()
	if err != nil {
		return err
	}
	args := append([]any{d.Title}, content...)
	tx.Exec(updateContent, append(args, d.ID)...)
	return nil
}

// columns returns the values of contentColumns.
func (c *Content) columns() ([]any, error) {
	files, err := listOrNull(c.Files)
	if err != nil {
		return nil, err
	}
	artifacts, err := listOrNull(c.Artifacts)
	return []any{orNull(c.Body), orNull(c.Payload), files, artifacts}, err
}

func (v *Verdict) insert(tx *store.Tx, decision int64) error {
	feedback, err := listOrNull(v.Feedback)
	if err != nil {
		return err
	}
	tx.Exec(insertVerdict, v.Revision, decision, v.Round, v.Escalated, v.Verdict, v.By, v.At, orNull(v.Reason), feedback, v.Until)
	return nil
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func listOrNull[T any](list []T) (any, error) {
	if len(list) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(list)
	return string(text), err
}
