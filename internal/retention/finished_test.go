package retention_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/apptest"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// jobs are the work of a stock: the items of its table.
type jobs struct {
	*stock
	needed  int64        // a job that unfinished work needs; 0 = none
	removed func() error // called by Remove
}

// newJobs returns a stock whose items are jobs instead of messages.
func newJobs(t *testing.T, n int) *jobs {
	t.Helper()
	j := &jobs{stock: newStock(t, n), removed: func() error { return nil }}
	j.mail = noMessages{stockMessages{j.stock}}
	j.parts = []work.Data{{File: "jobs.jsonl", Kind: "jobs", Lines: j.lines, Finished: j.finished, Remove: j.remove}}
	return j
}

func (j *jobs) finished(q store.Querier, _ int64, before time.Time, limit int) ([]work.Done, error) {
	return j.read(q.Query(`SELECT revision, at FROM items WHERE at <= ? AND revision <> ? ORDER BY at, revision LIMIT ?`,
		before, j.needed, limit))
}

func (*jobs) read(rows *store.Rows) (done []work.Done, err error) {
	defer rows.Close()
	for rows.Next() {
		var d work.Done
		if err := rows.Scan(&d.Key, &d.At); err != nil {
			return nil, err
		}
		if d.Line, err = json.Marshal(map[string]int64{"n": d.Key}); err != nil {
			return nil, err
		}
		done = append(done, d)
	}
	return done, rows.Err()
}

func (j *jobs) remove(tx *store.Tx, _ int64, done []work.Done) error {
	for _, d := range done {
		tx.Exec(`DELETE FROM items WHERE revision = ?`, d.Key)
	}
	return j.removed()
}

func (j *jobs) lines(q store.Querier, _ int64, after string, _ int) (lines [][]byte, last string, err error) {
	if after != "" {
		return nil, "", nil
	}
	done, err := j.read(q.Query(`SELECT revision, at FROM items ORDER BY revision`))
	for _, d := range done {
		lines = append(lines, d.Line)
	}
	return lines, "all", err
}

// noMessages are the messages of a stock that has none.
type noMessages struct{ stockMessages }

func (noMessages) Standings(store.Querier, int64, int64, int, bool) ([]work.Standing, error) {
	return nil, nil
}

// archived returns the lines of the archive.
func (j *jobs) archived() []map[string]any {
	j.t.Helper()
	w := world{Broker: &apptest.Broker{TB: j.t}, session: "default"}
	lines, _ := w.linesIn(j.dir, "jobs")
	return lines
}

// wantArchived checks that the archive has each of the jobs from 1 to n once.
func (j *jobs) wantArchived(n int) {
	j.t.Helper()
	lines := j.archived()
	got, want := map[int64]int{}, map[int64]int{}
	for _, l := range lines {
		got[int64(l["n"].(float64))]++
	}
	for i := range n {
		want[int64(i+1)] = 1
	}
	if d := cmp.Diff(want, got); d != "" {
		j.t.Errorf("wanted (-) and archived (+) jobs: %s", d)
	}
}

func TestFinished_ExactlyOnceWhereverTheBrokerIsKilledBetweenFileAndTransaction(t *testing.T) {
	t.Parallel()
	for crashAt := 1; crashAt <= 3; crashAt++ {
		t.Run(fmt.Sprint("at page ", crashAt), func(t *testing.T) {
			const n = 300 // three pages
			j := newJobs(t, n)
			pages := 0
			crashed := make(chan struct{})
			k := j.keeper(func() error {
				if pages++; pages < crashAt {
					return nil
				}
				if pages == crashAt {
					close(crashed)
				}
				return errCrash
			})
			await(j.stock, crashed)
			k.Stop()
			if want := n - 100*(crashAt-1); j.left() != want {
				t.Fatalf("%d are left, want %d", j.left(), want)
			}
			j.keeper(nil)
			j.empty()
			j.wantArchived(n)
		})
	}
}

func TestFinished_ConflictKeepsThePageForALaterTry(t *testing.T) {
	t.Parallel()
	j := newJobs(t, 10)
	tries := 0
	j.removed = func() error {
		if tries++; tries < 3 {
			return fault.New(fault.Conflict, "CHANGED", "a job has been started again")
		}
		return nil
	}
	j.keeper(nil)
	j.empty()
	j.wantArchived(10)
	if tries < 3 {
		t.Errorf("removed after %d tries, want 3 or more", tries)
	}
}

func TestFinished_WorkThatOthersNeedStays(t *testing.T) {
	t.Parallel()
	j := newJobs(t, 10)
	j.needed = 3
	j.keeper(nil)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	for j.left() > 1 && ctx.Err() == nil {
		j.clock.Advance(time.Second)
	}
	lines := j.archived()
	if len(lines) != 9 {
		t.Errorf("%d jobs are archived, want 9", len(lines))
	}
}

func TestFinished_KeeperComesBackWhenTheNextPieceIsDue(t *testing.T) {
	t.Parallel()
	j := newJobs(t, 1) // finished an hour ago
	j.keep = 90 * time.Minute
	j.keeper(nil)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	apptest.NoError(t, j.clock.BlockUntilContext(ctx, 1)) // the keeper sleeps
	if j.left() != 1 {
		t.Fatal("the job was removed before its time")
	}
	due := j.clock.Now().Add(30 * time.Minute)
	j.clock.Advance(30 * time.Minute)
	for j.left() > 0 && ctx.Err() == nil && j.clock.Since(due) < time.Minute {
		j.clock.Advance(time.Microsecond)
	}
	j.wantArchived(1)
}

func TestFinished_ExportHasTheArchivedWorkFirst(t *testing.T) {
	t.Parallel()
	j := newJobs(t, 5)
	j.closed = true
	j.closedKeep = time.Minute
	j.needed = 4
	k := j.keeper(nil)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	for j.left() > 1 && ctx.Err() == nil {
		j.clock.Advance(time.Second)
	}
	out, err := k.Delete(ctx, identity.Caller{Access: identity.Operator, Session: "default"}, idempotency.Request{}, "default")
	apptest.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(j.dir, out.Archive, "jobs.jsonl"))
	apptest.NoError(t, err)
	want := []string{`{"archived":true,"n":1}`, `{"archived":true,"n":2}`, `{"archived":true,"n":3}`, `{"archived":true,"n":5}`,
		`{"archived":false,"n":4}`, ""}
	if d := cmp.Diff(want, strings.Split(string(text), "\n")); d != "" {
		t.Errorf("wanted (-) and exported (+): %s", d)
	}
	if files, _ := filepath.Glob(filepath.Join(j.dir, "archive", "default", "*")); len(files) > 0 {
		t.Errorf("the deletion left %v", files)
	}
}
