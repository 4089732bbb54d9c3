package votes

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A record is a vote as exports and the archive have it.
type record struct {
	ID          string         `json:"id"`
	Title       string         `json:"title"`
	Description string         `json:"description"`
	Opener      string         `json:"opener"`
	Rule        string         `json:"rule"`
	Quorum      quorumRecord   `json:"quorum"`
	TaskID      string         `json:"task_id"`
	OpenedAt    time.Time      `json:"opened_at"`
	Deadline    time.Time      `json:"deadline"`
	ClosedAt    *time.Time     `json:"closed_at"` // null = open
	ClosedBy    string         `json:"closed_by"`
	CloseReason string         `json:"close_reason"`
	Outcome     string         `json:"outcome"` // open until it is closed
	Winner      string         `json:"winner"`
	Tally       []optionRecord `json:"tally"`
	Electors    int            `json:"electors"`
	Ballots     []ballotRecord `json:"ballots"`
	Revision    int64          `json:"revision"`
}

type quorumRecord struct {
	Ballots int     `json:"ballots,omitempty"`
	Share   float64 `json:"share,omitempty"`
}

type optionRecord struct {
	Option  string `json:"option"`
	Ballots int    `json:"ballots"`
}

type ballotRecord struct {
	Agent   string     `json:"agent"`
	Option  string     `json:"option"` // empty = it has not voted
	Reason  string     `json:"reason"`
	CastAt  *time.Time `json:"cast_at"`
	Changes int        `json:"changes"`
	Left    bool       `json:"left"`
}

// Records returns the votes of a session after a position as lines of JSON, and the position of the
// last one.
func (v *Votes) Records(q store.Querier, session int64, after string, limit int) ([][]byte, string, error) {
	from, err := work.Position(after)
	if err != nil {
		return nil, "", err
	}
	var written [][]byte
	last := ""
	err = lines(q, func(vote *Vote, line []byte) {
		written, last = append(written, line), strconv.FormatInt(vote.Key, 10)
	}, selectRecords, session, from, limit)
	return written, last, err
}

// Finished returns the votes of a session that closed at or before a time, in the order of their ends.
func (v *Votes) Finished(q store.Querier, session int64, before time.Time, limit int) ([]work.Done, error) {
	var done []work.Done
	err := lines(q, func(vote *Vote, line []byte) {
		done = append(done, work.Done{Key: vote.Key, At: vote.ClosedAt, Line: line})
	}, selectFinished, session, before, limit)
	return done, err
}

// mostBallots is about how many ballots the votes have that one function of the writer removes.
const mostBallots = 5000

// lines writes the votes of a query as lines of JSON, until they have about work.RecordBytes, or about
// mostBallots.
func lines(q store.Querier, to func(v *Vote, line []byte), query string, args ...any) error {
	rows := q.Query(query, args...)
	defer rows.Close()
	read := 0
	for bytes := 0; bytes < work.RecordBytes && read < mostBallots && rows.Next(); {
		v, err := scan(rows)
		if err != nil {
			return err
		}
		if err := readOptions(q, &v); err != nil {
			return err
		}
		cast, err := ballots(q, v.Key)
		if err != nil {
			return err
		}
		line, err := json.Marshal(recordOf(&v, cast))
		if err != nil {
			return err
		}
		bytes += len(line)
		read += len(cast)
		to(&v, line)
	}
	return rows.Err()
}

func recordOf(v *Vote, cast []Ballot) record {
	r := record{
		ID: v.ID(), Title: v.Title, Description: v.Description, Opener: v.Opener, Rule: v.Rule.String(),
		Quorum: quorumRecord(v.Quorum), TaskID: v.Task, OpenedAt: v.OpenedAt, Deadline: v.Deadline,
		ClosedAt: orNone(v.ClosedAt), ClosedBy: v.ClosedBy, CloseReason: v.CloseReason, Outcome: v.Outcome.String(),
		Winner: v.Winner, Electors: v.Electors, Revision: v.Revision,
	}
	for _, o := range v.Options {
		r.Tally = append(r.Tally, optionRecord{o.Text, o.Ballots})
	}
	for _, b := range cast {
		r.Ballots = append(r.Ballots, ballotRecord{b.Agent, b.Option, b.Reason, orNone(b.CastAt), b.Changes, b.Left})
	}
	return r
}

func orNone(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// CountFinished counts the votes that Finished returns without a limit.
func (v *Votes) CountFinished(q store.Querier, session int64, before time.Time) (n int64, err error) {
	err = q.QueryRow(countFinished, session, before).Scan(&n)
	return n, err
}

// Remove removes closed votes. Errors: fault.Conflict if one of them is open or does not exist.
func (v *Votes) Remove(tx *store.Tx, session int64, keys []int64) error {
	for _, key := range keys {
		n, err := tx.ExecCount(deleteVote, key, session)
		if err == nil && n == 0 {
			err = fault.New(fault.Conflict, "VOTE_OPEN", "the vote %d is not closed", key)
		}
		if err != nil {
			return fmt.Errorf("remove vote: %w", err)
		}
		removeRows(tx, key)
	}
	return nil
}

func removeRows(tx *store.Tx, key int64) {
	for _, statement := range []string{deleteOptions, deleteElectors} {
		tx.Exec(statement, key)
	}
}

// Erase removes up to limit votes of a session that is being deleted, and reports whether there may be
// more. It stops earlier once it has removed many ballots.
func (v *Votes) Erase(tx *store.Tx, session int64, limit int) (bool, error) {
	var keys []int64
	rows := tx.Query(selectIDs, session, limit)
	defer rows.Close()
	for rows.Next() {
		var key int64
		if err := rows.Scan(&key); err != nil {
			return false, err
		}
		keys = append(keys, key)
	}
	if err := rows.Err(); err != nil {
		return false, err
	}
	page := work.NewPage(tx)
	for _, key := range keys {
		if page.Full() {
			return true, nil
		}
		tx.Exec(deleteAnyVote, key)
		removeRows(tx, key)
	}
	return len(keys) == limit, nil
}
