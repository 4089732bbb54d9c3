package locks

import (
	"context"
	"math"

	"brokerd/internal/store"
)

// Start begins what runs by itself. What is held gets its full time again and a grace of 30 s, tickets a fresh 10 s.
func (t *Table) Start(ctx context.Context) error {
	err := t.store.Write(ctx, func(tx *store.Tx) error {
		now := t.clock.Now()
		tx.Exec(restartHolds, now.Add(restartGrace))
		if err := t.spots.load(tx); err != nil {
			return err
		}
		held, err := readGrants(tx.Query(selectRunning))
		if err != nil {
			return err
		}
		for _, g := range held {
			t.alarms.Set(alarm{holdAlarm, g.fence}, now.Add(restartGrace+warnAfter(g.maxHold)))
			if !g.collected {
				t.alarms.Set(alarm{collectAlarm, g.fence}, now.Add(restartGrace+collectWithin(g.kept)))
			}
		}
		return alarmRun{t}.resume(tx)
	})
	if err != nil {
		return err
	}
	ctx, t.stop = context.WithCancel(context.WithoutCancel(ctx))
	t.runner.Go(func() { t.alarms.Run(ctx) })
	return nil
}

// resume starts the deadlines of the tickets, and of the grants that they wait for. It resumes the
// work that was left to alarms when the broker stopped: settle tries all tickets again.
func (r alarmRun) resume(tx *store.Tx) error {
	closings, err := sessionsOf(tx.Query(selectClosings))
	if err != nil {
		return err
	}
	for _, id := range closings {
		r.alarms.Set(alarm{closeAlarm, id}, r.clock.Now())
	}
	sessions, err := sessionsOf(tx.Query(selectWaiting))
	if err != nil {
		return err
	}
	for _, id := range sessions {
		u, err := r.lockTx(tx, id)
		if err != nil {
			return err
		}
		u.budget = newBudget()
		for _, k := range u.queue.tickets {
			r.lapseLater(k)
			held, err := u.holders(&k.claim, k.owner, maxTickets)
			if err != nil && !tooBroad(err) { // of very many holders, some receive no notice that others wait
				return err
			}
			for _, h := range held {
				u.contestLater(h.fence)
			}
		}
		u.settleLater(math.MinInt64)
	}
	return nil
}

// sessionsOf reads rows with one session each, and closes them.
func sessionsOf(rows *store.Rows) (sessions []int64, err error) {
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		sessions = append(sessions, id)
	}
	return sessions, rows.Err()
}
