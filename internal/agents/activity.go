package agents

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/store"
)

const (
	// activityDelay is how long an agent's activity stays in memory only. A crash of the broker loses at most that much of it.
	activityDelay = time.Minute
	activityBatch = 500 // rows per transaction
)

// An activity is the part of an agent's row that changes too often for a write per change.
type activity struct {
	row  int64     // id of the agent; 0 = it has not been registered since the broker started
	last time.Time // the last call
}

// touch notes that the row of a registered agent lacks some activity. The first agent starts the timer of the write. The caller holds
// the mutex.
func (p *presence) touch(l *life, now time.Time) {
	if l.row == 0 || l.unwritten {
		return
	}
	l.unwritten = true
	p.unwritten = append(p.unwritten, l)
	if _, runs := p.writes.Deadline(struct{}{}); !runs {
		p.writes.Set(struct{}{}, now.Add(activityDelay))
	}
}

// writeActivity writes the activity of every agent whose row lacks some, in transactions of at most activityBatch rows.
func (r *Registry) writeActivity([]struct{}) {
	p := &r.presence
	p.mu.Lock()
	lives := p.unwritten
	p.unwritten = nil
	p.mu.Unlock()
	for chunk := range slices.Chunk(lives, activityBatch) {
		current := p.activities(chunk)
		err := r.store.Drain(context.Background(), func(tx *store.Tx) error {
			tx.Patient()
			for _, a := range current {
				if _, err := tx.Exec(updateActivity, a.last, a.row); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			r.zap.Warn("the activity of agents could not be written; trying again", zap.Int("agents", len(chunk)), zap.Error(err))
		}
		p.written(chunk, current, err != nil, r.clock.Now())
	}
}

func (p *presence) activities(lives []*life) []activity {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]activity, len(lives))
	for i, l := range lives {
		list[i] = l.activity
	}
	return list
}

// written notes that the rows of agents have these activities, unless the write has failed.
func (p *presence) written(lives []*life, rows []activity, failed bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range lives {
		l.unwritten = false
		if failed || l.activity != rows[i] {
			p.touch(l, now)
		} else {
			p.sweep(l)
		}
	}
}
