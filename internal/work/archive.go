package work

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"brokerd/internal/fault"
	"brokerd/internal/jsonform"
	"brokerd/internal/store"
)

// line returns what exports and the archive have of an item: the JSON of the API.
func (t *reader[T]) line(q store.Querier, r row[T]) ([]byte, error) {
	if _, err := t.merge(q, r, math.MaxInt64); err != nil {
		return nil, err
	}
	var record proto.Message = r.item
	if t.Record != nil {
		var err error
		if record, err = t.Record(q, r.item); err != nil {
			return nil, err
		}
	}
	var text bytes.Buffer
	err := jsonform.Append(&text, record)
	return text.Bytes(), err
}

// Records returns the items of a session after a position, each as one line of JSON, and the position of
// the last one: about RecordBytes. The line of a damaged item has its id and, in base64, its row.
func (t *Table[T]) Records(
	q store.Querier, session int64, after string, limit int,
) (lines [][]byte, last string, err error) {
	from, err := Position(after)
	if err != nil {
		return nil, "", err
	}
	rows := q.Query(selectRecords, session, t.Number, from, limit)
	defer rows.Close()
	for size := 0; size < RecordBytes && rows.Next(); {
		var text []byte
		r, err := t.scan(rows)
		if err == nil {
			text, err = t.line(q, r)
		}
		if t.leaveOut(err) { // but for what its row has
			text, err = json.Marshal(map[string]any{"id": ID(t.Letter, r.key), "damaged": r.text})
		}
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, text), strconv.FormatInt(r.key, 10)
		size += len(text)
	}
	return lines, last, rows.Close()
}

// finishedBytes is about how many bytes of lines one call of Finished returns: fewer than Records, so that
// Remove removes some 5,000 parts at most.
const finishedBytes = RecordBytes / 4

// Finished returns items that finished at or before a time and about which no chore is unfinished, the
// oldest end first: at most limit, and about finishedBytes.
func (t *Table[T]) Finished(q store.Querier, session int64, before time.Time, limit int) (done []Done, err error) {
	rows := q.Query(selectFinished, session, t.Number, before, t.Noun, limit)
	defer rows.Close()
	for size := 0; size < finishedBytes && rows.Next(); {
		var d Done
		r, err := t.scan(rows, &d.At)
		if err == nil {
			d.Line, err = t.line(q, r)
		}
		if t.leaveOut(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		d.Key, d.Revision = r.key, r.item.GetRevision()
		done = append(done, d)
		size += len(d.Line)
	}
	return done, rows.Close()
}

// CountFinished counts the items that Finished returns without a limit.
func (t *Table[T]) CountFinished(q store.Querier, session int64, before time.Time) (n int64, err error) {
	err = q.QueryRow(countFinished, session, t.Number, before, t.Noun).Scan(&n)
	return n, err
}

// Remove removes items that Finished has returned. Errors: fault.Conflict if one of them has changed
// since, or has been removed.
func (t *Table[T]) Remove(tx *store.Tx, session int64, done []Done) error {
	for i := range done {
		n, err := tx.ExecCount(deleteFinished, done[i].Key, session, t.Number, done[i].Revision)
		if err == nil && n == 0 {
			err = fault.New(fault.Conflict, "ITEM_CHANGED", "%s %s has changed or has been removed",
				t.Noun, ID(t.Letter, done[i].Key))
		}
		if err != nil {
			return fmt.Errorf("remove %ss: %w", t.Noun, err)
		}
		tx.Exec(deleteParts, done[i].Key)
	}
	return nil
}

// Erase removes up to limit items of a session that is being deleted, fewer if they have many parts. It
// reports whether there may be more.
func (t *Table[T]) Erase(tx *store.Tx, session int64, limit int) (bool, error) {
	ids, err := store.Collect(tx.Query(selectIDs, session, t.Number, limit), func(r *store.Rows) (id int64, err error) {
		return id, r.Scan(&id)
	})
	if err != nil {
		return false, err
	}
	page := NewPage(tx)
	for _, id := range ids {
		if page.Full() {
			return true, nil
		}
		tx.Exec(deleteItem, id)
		tx.Exec(deleteParts, id)
	}
	return len(ids) == limit, nil
}

// Data is what the keeper exports, archives and removes of a session.
func (t *Table[T]) Data() Data {
	return Data{
		File: t.Plural() + ".jsonl", Kind: t.Plural(), Lines: t.Records, Erase: t.Erase,
		Finished: t.Finished, CountFinished: t.CountFinished, Remove: t.Remove,
	}
}
