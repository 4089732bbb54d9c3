package tasks

import (
	"context"
	"fmt"
	"maps"
	"slices"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/store"
)

// A Witness is a clock that is told of the tasks that live by it.
type Witness interface{ Made(s *Service) }

// ToldWitnesses has all clocks told that are a Witness. It is for TestMain.
func ToldWitnesses() {
	made = func(s *Service) {
		if w, ok := s.Clock.(Witness); ok {
			w.Made(s)
		}
	}
}

// mostCompared is how many rows a comparison reads in search of tasks that waiters should have got.
const mostCompared = 10_000

// Compare compares what the writer keeps in memory with the tables. It returns what differs, the
// request ids of the claims on the lists, and how many searches have not ended.
func (s *Service) Compare(ctx context.Context) (wrong, listed []string, searches int, err error) {
	err = s.Store.Write(ctx, func(tx *store.Tx) error {
		c := comparison{Service: s, tx: tx, budget: mostCompared}
		if err := c.run(); err != nil {
			return err
		}
		wrong, listed, searches = c.wrong, c.listed, s.waiters.searches.Len()
		return nil
	})
	return wrong, listed, searches, err
}

// A comparison is one function of the writer that compares.
type comparison struct {
	*Service
	tx            *store.Tx
	budget        int // of rows
	wrong, listed []string
}

func (c *comparison) differ(what string, memory, table any) {
	if a, b := fmt.Sprint(memory), fmt.Sprint(table); a != b {
		c.wrong = append(c.wrong, fmt.Sprintf("%s: memory has %s, the table %s", what, a, b))
	}
}

func (c *comparison) run() error {
	counts := map[int64]int{}
	_, err := store.Collect(c.tx.Query(countUnfinished), func(r *store.Rows) (session int64, err error) {
		var n int
		err = r.Scan(&session, &n)
		counts[session] = n
		return session, err
	})
	if err != nil {
		return err
	}
	known := maps.Collect(c.queues.unfinished.All())
	maps.DeleteFunc(known, func(_ int64, n int) bool { return n == 0 })
	c.differ("unfinished tasks", known, counts)
	for session, queues := range c.queues.bySession.All() {
		rows, err := readQueues(c.tx, session, func(int64, error) bool { return false })
		if err != nil {
			return err
		}
		c.differ(fmt.Sprintf("queues of session %d", session), maps.Collect(queues.All()), rows)
	}
	searching := maps.Collect(c.waiters.searches.All())
	for session, list := range c.waiters.bySession.All() {
		u, closed, err := c.byBroker(c.tx, session)
		if err != nil {
			return err
		}
		c.differ(fmt.Sprintf("closed sessions with waiters: %d", session), closed, false)
		c.differ("lists of waiters without any", len(list) == 0, false)
		c.differ("waiters in order of arrival",
			slices.IsSortedFunc(list, func(a, b *waiter) int { return int(a.number - b.number) }), true)
		for _, w := range list {
			c.listed = append(c.listed, w.req.ID)
			if err := c.waiter(u, w, searching[w.number] != nil); err != nil {
				return err
			}
			delete(searching, w.number)
		}
	}
	c.differ("searches without a waiter", len(searching), 0)
	return nil
}

// waiter compares a waiter with its agent, and with the tasks that are READY.
func (c *comparison) waiter(u *taskTx, w *waiter, searching bool) error {
	agent, found, err := c.Directory.Find(c.tx, w.session, w.agent.Name)
	if err != nil {
		return err
	}
	c.differ(fmt.Sprintf("the agent of waiter %d", w.number),
		[]any{true, w.agent.Name, w.agent.Role, w.agent.Capabilities},
		[]any{found, agent.Name, agent.Role, agent.Capabilities})
	for _, name := range []string{"", agent.Name} {
		if _, serving, err := c.Backlog.Pending(c.tx, serveChore, w.session, name); err != nil || serving || searching {
			return err
		}
	}
	if gated, err := u.gated(w.agent); err != nil || gated != open {
		return err
	}
	if w.given != 0 {
		t, err := scan(c.tx.QueryRow(selectTask, w.given))
		if err != nil {
			return err
		}
		c.differ("the finished task "+t.Id+" has waiters", finished(t.State), false)
		c.differ("the waiter for "+t.Id+" could have it", t.claimable() && w.wants(t), false)
		return nil
	}
	queues, err := readQueues(c.tx, w.session, func(int64, error) bool { return false })
	if err != nil {
		return err
	}
	s := newSearch(maps.All(queues), agent, w.in.GetLabels(), 1)
	if done, err := s.run(c.tx, &c.budget); err != nil || !done {
		return err
	}
	c.differ(fmt.Sprintf("tasks that waiter %d could have", w.number), len(s.found), 0)
	return nil
}

// Permits reports whether a state permits a call.
func Permits(s pb.TaskState, call string) bool { return moves.Allows(s, call) }
