package tasks

import (
	"cmp"
	"errors"
	"iter"
	"slices"

	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const (
	searchRows  = 5000 // that one function of the writer reads for a search, about
	searchPage  = 100  // rows of one query of a search
	countedRows = 100  // up to this number a search counts the tasks with a label
)

// A place is where a task is in a queue.
type place struct {
	rank    int
	created int64
}

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.rank, o.rank), cmp.Compare(p.created, o.created))
}

// A search finds the first tasks that an agent can claim and that have all the given labels, in the
// order in which its claims would get them. It reads queue by queue, and can stop after each row to
// continue in another function.
//
//	no label    ──► the index of the READY tasks
//	one label   ──► task_labels
//	more labels ──► task_labels by the label that the fewest tasks of the queue have; the other
//	                labels of each row by their keys
type search struct {
	agent  directory.Agent
	labels [][2]string // names and values
	limit  int
	queues []int64        // that are still to be read
	at     place          // the last one that was read, in queues[0]
	driver int            // the label by which queues[0] is read; -1 = not chosen yet
	found  []place        // the best so far, in order
	skip   map[int64]bool // keys of damaged tasks
}

// newSearch returns a search that has read nothing.
func newSearch(queues iter.Seq2[queueKey, queue], a directory.Agent, labels map[string]string, limit int) *search {
	s := &search{agent: a, limit: limit, queues: serving(queues, a)}
	for name, value := range labels {
		s.labels = append(s.labels, [2]string{name, value})
	}
	s.open()
	return s
}

// clone returns a search that continues from the same row.
func (s *search) clone() *search {
	c := *s
	c.found = slices.Clone(s.found)
	return &c
}

// open begins a queue.
func (s *search) open() {
	s.at, s.driver = place{rank: -1}, -1
	if len(s.labels) < 2 {
		s.driver = 0
	}
}

// leave ends a queue.
func (s *search) leave() {
	s.queues = s.queues[1:]
	s.open()
}

// run reads on, about as many rows as the budget has, from which it takes them. It reports whether
// the search has ended.
func (s *search) run(q store.Querier, budget *int) (done bool, err error) {
	for len(s.queues) > 0 {
		if *budget <= 0 {
			return false, nil
		}
		if s.driver < 0 {
			if err := s.choose(q, budget); err != nil {
				return false, err
			}
			if s.driver < 0 {
				s.leave() // no task of the queue has all labels
				continue
			}
		}
		page := min(s.limit, searchPage)
		if len(s.labels) > 1 {
			page = searchPage
		}
		some, err := s.read(q, page)
		if err != nil {
			return false, err
		}
		*budget -= 1 + len(some)
		ended := len(some) < page
		for _, p := range some {
			if len(s.found) == s.limit && p.compare(s.found[s.limit-1]) >= 0 {
				ended = true
				break
			}
			s.at = p
			matches, err := s.matches(q, p, budget)
			if err != nil {
				return false, err
			}
			if matches {
				i, _ := slices.BinarySearchFunc(s.found, p, place.compare)
				s.found = slices.Insert(s.found, i, p)
				s.found = s.found[:min(len(s.found), s.limit)]
			}
			if *budget <= 0 && !ended {
				return false, nil
			}
		}
		if ended {
			s.leave()
		}
	}
	return true, nil
}

// choose chooses the label that the fewest tasks of the queue have; none if one has no task.
func (s *search) choose(q store.Querier, budget *int) error {
	least := countedRows + 1
	for i, l := range s.labels {
		var n int
		if err := q.QueryRow(countLabelled, s.queues[0], l[0], l[1], countedRows).Scan(&n); err != nil {
			return err
		}
		*budget -= 1 + n
		if n == 0 {
			s.driver = -1
			return nil
		}
		if n < least {
			s.driver, least = i, n
		}
	}
	return nil
}

// read reads the next places of the queue.
func (s *search) read(q store.Querier, page int) ([]place, error) {
	within, beyond, args := readyWithin, readyBeyond, []any{s.queues[0]}
	if len(s.labels) > 0 {
		l := s.labels[s.driver]
		within, beyond, args = labelledWithin, labelledBeyond, append(args, l[0], l[1])
	}
	var some []place
	if s.at.rank >= 0 {
		var err error
		some, err = places(q.Query(within, append(slices.Clip(args), s.at.rank, s.at.created, page)...))
		if err != nil {
			return nil, err
		}
	}
	if len(some) == page {
		return some, nil
	}
	more, err := places(q.Query(beyond, append(slices.Clip(args), s.at.rank, page-len(some))...))
	return append(some, more...), err
}

func places(rows *store.Rows) ([]place, error) {
	return store.Collect(rows, func(r *store.Rows) (p place, err error) {
		return p, r.Scan(&p.rank, &p.created)
	})
}

// matches reports whether a task is not known to be damaged, and has the labels by which its queue is
// not read.
func (s *search) matches(q store.Querier, p place, budget *int) (bool, error) {
	if s.skip[p.created] {
		return false, nil
	}
	for i, l := range s.labels {
		if i == s.driver {
			continue
		}
		*budget--
		err := q.QueryRow(existsLabel, s.queues[0], l[0], l[1], p.rank, p.created).Scan(new(int))
		if errors.Is(err, store.ErrNoRows) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// search begins a search for one task.
func (k *queues) search(tx *work.Tx, a directory.Agent, labels map[string]string) (*search, error) {
	all, err := k.known(tx)
	if err != nil {
		return nil, err
	}
	s := newSearch(all.All(), a, labels, 1)
	s.skip = k.damaged
	return s, nil
}

// resume continues a copy of a search for one task. It returns the task, or the search that has to
// continue in another function, or neither if there is no task. A search that ends in a later function
// than it began starts again if its task has been taken meanwhile. It skips damaged tasks.
func (k *queues) resume(
	tx *work.Tx, from *search, labels map[string]string, budget *int,
) (t *task, rest *search, err error) {
	s := from.clone()
	for again := false; ; {
		done, err := s.run(tx, budget)
		if err != nil {
			return nil, nil, err
		}
		if !done {
			return nil, s, nil
		}
		if len(s.found) == 0 {
			return nil, nil, nil
		}
		t, err := byKey(tx, s.found[0].created)
		damaged := k.skip(noun, s.found[0].created, err)
		if err != nil && !damaged {
			return nil, nil, err
		}
		if err == nil && t != nil && t.claimable() && serves(t, s.agent) && labelled(&t.Task, labels) {
			return t, nil, nil
		}
		if again && !damaged {
			return nil, nil, nil
		}
		again = again || !damaged
		if s, err = k.search(tx, s.agent, labels); err != nil {
			return nil, nil, err
		}
	}
}
