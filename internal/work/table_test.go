package work_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/agents"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// A shelf keeps votes as items without any rules.
type shelf struct {
	*work.Table[*pb.Vote]
	t   *testing.T
	dir string
}

const session = 1 // the row of the session "default"

func newShelf(t *testing.T) *shelf {
	t.Helper()
	dir, clock := t.TempDir(), clockwork.NewFakeClock()
	st := testkit.Store(t, dir, clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(), agents.Migrations(),
		work.Migrations())
	testkit.Agents(t, st, "", "a")
	d := &work.Desk{Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(), Clock: clock, Log: zap.NewNop()}
	return &shelf{work.NewTable(d, work.Kind[*pb.Vote]{
		Number: 99, Noun: "vote", Letter: "v", Title: (*pb.Vote).GetTitle, PartFields: []protoreflect.Name{"description"},
		Final: []protoreflect.EnumNumber{pb.VoteState_VOTE_STATE_CLOSED.Number()},
		Columns: func(v *pb.Vote) work.Columns {
			return work.Columns{State: v.State.Number(), Opener: v.Opener, Finished: work.Time(v.ClosedAt)}
		},
	}), t, dir}
}

// write runs a function of the writer as the broker.
func (s *shelf) write(fn func(t *work.Tx) error) {
	s.t.Helper()
	must(s.t, s.Store.Write(s.t.Context(), func(tx *store.Tx) error {
		u, err := s.BeginBroker(tx, session)
		if err == nil {
			err = fn(u)
		}
		return err
	}))
}

// add adds n items, which are finished or not.
func (s *shelf) add(n int, finished bool) (items []*pb.Vote) {
	s.t.Helper()
	s.write(func(t *work.Tx) error {
		items = nil
		for range n {
			id := t.NextRevision()
			v := &pb.Vote{Id: work.ID("v", id), Revision: id, State: pb.VoteState_VOTE_STATE_OPEN, Title: "T", Opener: "a"}
			if finished {
				v.State, v.ClosedAt = pb.VoteState_VOTE_STATE_CLOSED, work.Stamp(t.Now())
			}
			if err := s.Add(t, v); err != nil {
				return err
			}
			items = append(items, v)
		}
		return nil
	})
	return items
}

// damage makes items undecodable, while the store is open: SQLite reads what another process has written.
func (s *shelf) damage(items ...*pb.Vote) {
	s.t.Helper()
	s.write(func(t *work.Tx) error {
		for _, v := range items {
			t.Exec(`UPDATE items SET item = ? || item WHERE id = ?`, []byte{0x0a}, s.Key(v))
		}
		return nil
	})
}

func (s *shelf) read(fn func(q store.Querier) error) {
	s.t.Helper()
	must(s.t, s.Store.Read(s.t.Context(), func(snap *store.Snapshot) error { return fn(snap) }))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRemove_RefusesAnItemThatHasChangedSinceItWasRead(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	items := s.add(2, true)
	var done []work.Done
	s.read(func(q store.Querier) (err error) {
		done, err = s.Finished(q, session, time.Now().AddDate(100, 0, 0), 10)
		return err
	})
	if len(done) != 2 {
		t.Fatalf("%d items are finished, want 2", len(done))
	}
	s.write(func(tx *work.Tx) error {
		items[1].Revision = tx.NextRevision()
		return s.Put(tx, items[1])
	})
	err := s.Store.Write(t.Context(), func(tx *store.Tx) error { return s.Remove(tx, session, done) })
	if fault.KindOf(err) != fault.Conflict {
		t.Errorf("the removal: %v, want a conflict", err)
	}
	if n := testkit.Number(t, s.dir, `SELECT count(*) FROM items`); n != 2 {
		t.Errorf("%d items are left, want both", n)
	}
	s.write(func(tx *work.Tx) error { return s.Remove(tx.Tx, session, done[:1]) })
}

func TestDamage_OfOneItemStopsNoArchiveNoExportAndNoChore(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	finished, open := s.add(3, true), s.add(2, false)
	s.damage(finished[0], open[0])
	s.read(func(q store.Querier) error {
		done, err := s.Finished(q, session, time.Now().AddDate(100, 0, 0), 10)
		if len(done) != 2 || done[0].Key != s.Key(finished[1]) {
			t.Errorf("the archive gets %v", done)
		}
		must(t, err)
		lines, last, err := s.Records(q, session, "", 10)
		if len(lines) != 5 || last != strings.TrimPrefix(open[1].Id, "v-") {
			t.Errorf("the export has %d lines up to %s", len(lines), last)
		}
		if first := string(lines[0]); !strings.Contains(first, fmt.Sprintf(`"id":%q`, finished[0].Id)) || !strings.Contains(first, `"damaged":`) {
			t.Errorf("the export has %s", first)
		}
		return err
	})
	if more, ended := s.endAll(); more || len(ended) != 1 || ended[0] != open[1].Id {
		t.Errorf("the chore has ended %v; more: %v", ended, more)
	}
}

// endAll does pages of a chore on all unfinished items until none is left.
func (s *shelf) endAll() (more bool, ended []string) {
	s.t.Helper()
	c := work.Chore{Session: session}
	for range 10 {
		s.write(func(t *work.Tx) (err error) {
			more, err = s.EachOpen(t.Tx, &c, work.Filter[*pb.Vote]{}, func(_ *work.Tx, v *pb.Vote) error {
				ended = append(ended, v.Id)
				return nil
			})
			return err
		})
		if !more {
			break
		}
	}
	return more, ended
}

func TestEachOpen_PassesPagesOfDamagedItems(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.damage(s.add(2*work.MostPaged, false)...)
	last := s.add(1, false)
	if more, ended := s.endAll(); more || len(ended) != 1 || ended[0] != last[0].Id {
		t.Errorf("the chore has ended %v; more: %v", ended, more)
	}
}

func TestCheck_NamesADamagedItemAndColumnsOfAnother(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	items := s.add(3, false)
	s.damage(items[0])
	s.write(func(tx *work.Tx) error {
		tx.Exec(`UPDATE items SET opener = 'b' WHERE id = ?`, s.Key(items[1]))
		tx.Exec(`INSERT INTO item_parts (item, part, revision, body) VALUES (999, 'x', 1, ?)`, []byte{})
		return nil
	})
	var problems []string
	s.read(func(q store.Querier) error {
		for _, check := range append(s.Checks(10), work.CheckParts) {
			found, err := check(q)
			must(t, err)
			problems = append(problems, found...)
		}
		return nil
	})
	want := []string{
		"vote " + items[0].Id + ": it cannot be decoded",
		"vote " + items[1].Id + ": its columns are not those of its message",
		"the item with the number 999 does not exist, but has a part",
	}
	if fmt.Sprint(problems) != fmt.Sprint(want) {
		t.Errorf("the checks find %q, want %q", problems, want)
	}
}
