package artifacts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	// keepNumbers is how long the numbers of a name stay used after its last version was deleted.
	keepNumbers = 30 * 24 * time.Hour
	// forgetAtOnce is how many such names one deletion forgets.
	forgetAtOnce = 10
)

// A Deleted is the outcome of a deletion.
type Deleted struct {
	Versions int64
	Freed    int64 // bytes of contents that the session does not have any more
	Revision int64
}

// Delete removes a version, or all versions of a name for 0. When it returns, the files of contents
// that no session has any more are removed. Errors: fault.NotFound; fault.Denied (NOT_THE_AUTHOR).
func (r *Repository) Delete(ctx context.Context, c identity.Caller, req idempotency.Request, name string, number int64) (Deleted, error) {
	var d Deleted
	err := r.Store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &d, func() error {
			s, a, err := r.acting(tx, c)
			if err != nil {
				return err
			}
			t := removeTx{Repository: r, tx: tx, session: s.ID}
			d, err = t.run(a, a.Directs(s), name, number)
			return err
		})
		return err
	})
	if err != nil {
		return Deleted{}, fmt.Errorf("delete artifact: %w", err)
	}
	r.collect()
	r.count("deleted")
	return d, nil
}

// A removeTx is a transaction that removes versions.
type removeTx struct {
	*Repository
	tx      *store.Tx
	session int64
}

// A loss is how many versions of a content are removed.
type loss struct {
	sum      string
	size     int64
	versions int64
	last     bool // the session has no other version of the content
}

func (t *removeTx) run(a directory.Agent, directs bool, name string, number int64) (d Deleted, err error) {
	if _, err := find(t.tx, t.session, name, number); err != nil {
		return d, err
	}
	losses, author, err := t.losses(name, number, a.Name)
	if err != nil {
		return d, err
	}
	if author != "" && !directs {
		return d, fault.New(fault.Denied, "NOT_THE_AUTHOR",
			"%s has uploaded a version of %q: only it, the session's directors and operators may delete that version", author, name).With("author", author)
	}
	for _, l := range losses {
		d.Versions += l.versions
		if l.last {
			d.Freed += l.size
		}
	}
	if d.Revision, err = t.append(a, name, number, d); err != nil {
		return d, err
	}
	t.tx.Exec(deleteVersions, t.session, name, number, number)
	t.settle(losses, d.Versions, d.Freed)
	if err := t.promote(name); err != nil {
		return d, err
	}
	return d, t.forget()
}

// losses returns what removing versions of a name takes from the session, and an author other than
// the given one, if there is one.
func (t *removeTx) losses(name string, number int64, but string) (losses []loss, author string, err error) {
	rows := t.tx.Query(groupDeleted, t.session, name, number, number)
	defer rows.Close()
	for rows.Next() {
		var l loss
		var first, last string
		if err := rows.Scan(&l.sum, &l.size, &l.versions, &first, &last); err != nil {
			return nil, "", err
		}
		for _, by := range []string{first, last} {
			if by != but {
				author = by
			}
		}
		losses = append(losses, l)
	}
	if err := rows.Err(); err != nil {
		return nil, "", err
	}
	return losses, author, t.findLast(losses)
}

// findLast notes which contents the session loses.
func (t *removeTx) findLast(losses []loss) error {
	for i := range losses {
		l := &losses[i]
		var size, versions int64
		if err := t.tx.QueryRow(selectContent, t.session, l.sum).Scan(&size, &versions); err != nil {
			return err
		}
		l.last = versions == l.versions
	}
	return nil
}

// settle updates contents and sums after versions were removed.
func (t *removeTx) settle(losses []loss, versions, freed int64) {
	var lost []string
	for _, l := range losses {
		if l.last {
			lost = append(lost, l.sum)
			t.tx.Exec(deleteContent, t.session, l.sum)
		} else {
			t.tx.Exec(dropContent, l.versions, t.session, l.sum)
		}
	}
	t.drop(t.tx, lost)
	t.tx.Exec(addUsage, t.session, 0, -versions, -freed)
}

// promote makes the highest version that is left the newest, or marks the name as deleted.
func (t *removeTx) promote(name string) error {
	var highest int64
	err := t.tx.QueryRow(highestVersion, t.session, name).Scan(&highest)
	if errors.Is(err, store.ErrNoRows) {
		t.tx.Exec(markDeleted, t.tx.Now(), t.session, name)
		return nil
	}
	if err != nil {
		return err
	}
	t.tx.Exec(makeNewest, t.session, name, highest)
	return nil
}

// forget removes some names whose versions were all deleted long ago.
func (t *removeTx) forget() error {
	n, err := t.tx.ExecCount(forgetDeleted, t.session, t.session, t.tx.Now().Add(-keepNumbers), forgetAtOnce)
	if err == nil && n > 0 {
		t.tx.Exec(addUsage, t.session, -n, 0, 0)
	}
	return err
}

func (t *removeTx) append(a directory.Agent, name string, number int64, d Deleted) (int64, error) {
	details, err := json.Marshal(struct {
		Name     string `json:"name"`
		Version  int64  `json:"version"` // 0 = all
		Versions int64  `json:"versions"`
		Freed    int64  `json:"freed_bytes"`
	}{name, number, d.Versions, d.Freed})
	if err != nil {
		return 0, err
	}
	summary := shortName(name)
	if number > 0 {
		summary = fmt.Sprintf("%s version %d", summary, number)
	}
	return t.Log.Append(t.tx, events.Entry{
		Session: t.session, Category: events.Work, Type: "artifact.deleted", Source: a.Name, SourceRole: a.Role,
		Summary: summary, Details: string(details),
	})
}
