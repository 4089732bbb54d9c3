package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"brokerd/internal/fault"
)

// IncompleteFile marks a data folder into which a backup is being restored. Open refuses the folder
// until the restore has removed the file.
const IncompleteFile = "restore.incomplete"

// restoreJump is how many numbers the counter leaves out at a restore. The broker that made the backup
// may have used some of them since; no broker ever uses that many.
const restoreJump = 1_000_000_000_000

// ownMigrations are those of the engine's tables beside meta and migrations.
var ownMigrations = []Migration{{Name: "store/001_restores", SQL: `
CREATE TABLE restores (
	last        INTEGER PRIMARY KEY, -- the counter of the backup
	next        INTEGER NOT NULL,    -- the first number after the jump
	restored_at INTEGER NOT NULL
);
`}, {Name: "store/002_moved", SQL: `
ALTER TABLE meta ADD COLUMN moved TEXT; -- where the data was moved to; '' while it is moved here; NULL = it is here
`}}

// A gap is the numbers between two revisions that a restore has left out.
type gap struct{ last, next int64 }

// has reports whether a client can only have seen the revision before the restore. The last number of
// the gap is different: it means that everything before next was seen.
func (g gap) has(revision int64) bool { return g.last < revision && revision < g.next-1 }

// Restored notes that this database comes from a backup: the counter jumps by 10^12, and CheckResume
// refuses the numbers in between. It returns the counter of the backup and the next number.
func (tx *Tx) Restored() (last, next int64) {
	last = tx.writer.counter
	next = last + restoreJump + 1
	tx.Exec(`INSERT INTO restores (last, next, restored_at) VALUES (?, ?, ?)`, last, next, tx.Now())
	tx.numbered = true
	tx.writer.counter = next - 1
	return last, next
}

// CheckResume refuses a revision after which a client wants to resume, if a restore has left it out:
// the client has seen changes that were lost. fault.OutOfRange (RESTORED).
func (s *Store) CheckResume(revision int64) error {
	for _, g := range s.gaps {
		if g.has(revision) {
			return fault.New(fault.OutOfRange, "RESTORED",
				"the broker was restored from a backup of revision %d, so revision %d and the changes around it are lost: "+
					"read the present state again, and resume after revision %d", g.last, revision, g.last).
				With("last", strconv.FormatInt(g.last, 10)).With("next", strconv.FormatInt(g.next, 10))
		}
	}
	return nil
}

// SkipGap returns the revision itself, or the last number of the gap that contains it. No change
// lies between the two, and CheckResume accepts the result.
func (s *Store) SkipGap(revision int64) int64 {
	for _, g := range s.gaps {
		if g.has(revision) {
			return g.next - 1
		}
	}
	return revision
}

// A movedTo says whether the data is in the database.
type movedTo struct {
	marked bool
	to     string // where it was moved to; empty = it is being moved here
}

// check refuses a database that does not have the data. name is that of the database.
func (m movedTo) check(name string) error {
	switch {
	case !m.marked:
		return nil
	case m.to == "":
		return fault.New(fault.Precondition, "MIGRATION_INCOMPLETE",
			"a migration into %s was interrupted, and its data is incomplete: repeat the same 'brokerd migrate'", name)
	}
	return fault.New(fault.Precondition, "MOVED",
		"the data of %s was moved to %s: start brokerd there; to use this old copy all the same, change it with "+
			"UPDATE meta SET moved = NULL", name, m.to)
}

// errNoData refuses a place without a database.
func errNoData(name string) error {
	return fault.New(fault.Precondition, "NO_DATA", "there is no database of brokerd in %s", name)
}

// gapsOf reads the gaps of all restores.
func gapsOf(c *conn) (gaps []gap, err error) {
	rows := c.queryRows(`SELECT last, next FROM restores ORDER BY last`)
	for rows.Next() {
		var g gap
		if err := rows.Scan(&g.last, &g.next); err != nil {
			return nil, err
		}
		gaps = append(gaps, g)
	}
	return gaps, rows.Err()
}

// checkComplete refuses a folder into which a restore has not ended.
func checkComplete(dir string) error {
	_, err := os.Stat(filepath.Join(dir, IncompleteFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return fault.New(fault.Precondition, "RESTORE_INCOMPLETE",
		"a restore into %s was interrupted: run 'brokerd restore' with this folder again", dir)
}
