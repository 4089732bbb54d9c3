package votes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// pageBytes is about how many bytes of texts a page of a list has.
const pageBytes = 1 << 20

// A Found is a vote with its ballots.
type Found struct {
	Vote     Vote
	Ballots  []Ballot // by agent
	Revision int64    // of the snapshot
}

// Get returns a vote. With a wait, it returns when the vote is closed or the wait has ended. Errors:
// fault.NotFound.
func (v *Votes) Get(ctx context.Context, who identity.Caller, id string, wait time.Duration) (Found, error) {
	f, err := v.read(ctx, who, id)
	if err == nil && f.Vote.Open() && wait > 0 {
		err = v.hub.Await(ctx, wait, []int64{f.Vote.Key}, func() (bool, error) {
			var err error
			f, err = v.read(ctx, who, id)
			return !f.Vote.Open(), err
		})
	}
	if err != nil {
		return Found{}, fmt.Errorf("get vote: %w", err)
	}
	return f, nil
}

func (v *Votes) read(ctx context.Context, who identity.Caller, id string) (f Found, err error) {
	err = v.store.Read(ctx, func(snap *store.Snapshot) error {
		s, err := v.dir.Session(snap, who.Session)
		if err != nil {
			return err
		}
		f = Found{Revision: snap.Revision()}
		if f.Vote, err = find(snap, s.ID, id); err != nil {
			return err
		}
		f.Ballots, err = ballots(snap, f.Vote.Key)
		return err
	})
	return f, err
}

// A Selection is what a list of votes is restricted to. Empty fields do not restrict.
type Selection struct {
	State   int // 1 = open, 2 = closed
	Opener  string
	Elector string
	Task    string
	Before  int64 // key of the last vote of the page before; 0 = the first page
	Limit   int
}

// A Page is a part of a list, without descriptions.
type Page struct {
	Votes    []Vote
	Next     int64 // the key to continue before; 0 = there are no more
	Revision int64 // of the snapshot
}

// List returns votes, the newest first: at most Limit, and about pageBytes, of work.MostRead that it
// reads.
func (v *Votes) List(ctx context.Context, who identity.Caller, sel Selection) (Page, error) {
	if sel.Before == 0 {
		sel.Before = 1<<63 - 1
	}
	var p Page
	err := v.store.Read(ctx, func(snap *store.Snapshot) error {
		s, err := v.dir.Session(snap, who.Session)
		if err != nil {
			return err
		}
		p = Page{Revision: snap.Revision()}
		edge := int64(0)
		err = snap.QueryRow(selectEdge, s.ID, sel.Before, work.MostRead-1).Scan(&edge)
		if err != nil && !errors.Is(err, store.ErrNoRows) {
			return err
		}
		bytes := 0
		rows := snap.Query(selectVotes, s.ID, sel.Before, edge, sel.State, sel.State, sel.Opener, sel.Opener, sel.Task, sel.Task,
			sel.Elector, sel.Elector, sel.Limit+1)
		defer rows.Close()
		for rows.Next() {
			vote, err := scan(rows)
			if err != nil {
				return err
			}
			if len(p.Votes) == sel.Limit || bytes > pageBytes {
				p.Next = p.Votes[len(p.Votes)-1].Key
				return nil
			}
			if err := readOptions(snap, &vote); err != nil {
				return err
			}
			bytes += vote.size()
			p.Votes = append(p.Votes, vote)
		}
		p.Next = edge
		return rows.Err()
	})
	if err != nil {
		return Page{}, fmt.Errorf("list votes: %w", err)
	}
	return p, nil
}

// size is about how many bytes of text a vote has.
func (v *Vote) size() int {
	n := len(v.Title) + len(v.Description) + 256
	for _, o := range v.Options {
		n += len(o.Text)
	}
	return n
}
