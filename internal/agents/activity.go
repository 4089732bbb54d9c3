package agents

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/store"
)

const (
	// activityDelay is how long an agent's activity stays in memory only. A crash of the broker
	// loses at most that much of it.
	activityDelay = time.Minute
	activityBatch = 500 // rows per transaction
	// idleAfter is how long an agent that reports no status is active after its last work, and
	// initializing after its registration if it makes no call.
	idleAfter = 5 * time.Minute
)

// An activity is the part of an agent's row that changes too often for a write per change.
type activity struct {
	row  int64     // id of the agent; 0 = it has not been registered since the broker started
	last time.Time // the last call
	Messages
}

// Messages counts the messages of an agent since its first registration.
type Messages struct {
	Sent      int64
	Received  int64 // first deliveries only
	Processed int64 // acknowledged
}

// Worked counts messages that an agent has sent, received and processed. It runs in the writer,
// after the commit.
func (p *Presence) Worked(session, agent string, sent, received, processed int) {
	now := p.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lives[agentKey{session, agent}]
	if l == nil {
		return
	}
	l.Sent += int64(sent)
	l.Received += int64(received)
	l.Processed += int64(processed)
	l.worked = now
	p.touch(l, now)
}

// count sets the counts of an agent's messages, which its row may lack.
func (p *Presence) count(session string, a *Agent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lives[agentKey{session, a.Name}]; l != nil && l.row == a.ID {
		a.Messages = l.Messages
	}
}

// derive sets the status of an agent that reports none, by its work. claims says that it holds a
// claim. The caller holds the mutex.
func (p *Presence) derive(a *Agent, l *life, claims bool, now time.Time) {
	switch {
	case a.Status != Unreported:
	case claims || l != nil && now.Sub(l.worked) < idleAfter:
		a.Status = Active
	case now.Sub(a.RegisteredAt) < idleAfter && (l == nil || !l.begun):
		a.Status = Initializing
	default:
		a.Status = Idle
	}
}

// touch notes that the row of a registered agent lacks some activity. The first agent starts the
// timer of the write. The caller holds the mutex.
func (p *Presence) touch(l *life, now time.Time) {
	if l.row == 0 || l.unwritten {
		return
	}
	l.unwritten = true
	p.unwritten = append(p.unwritten, l)
	if _, runs := p.writes.Deadline(struct{}{}); !runs {
		p.writes.Set(struct{}{}, now.Add(activityDelay))
	}
}

// writeActivity writes the activity of every agent whose row lacks some, in transactions of at most
// activityBatch rows.
func (p *Presence) writeActivity([]struct{}) {
	p.mu.Lock()
	lives := p.unwritten
	p.unwritten = nil
	p.mu.Unlock()
	for chunk := range slices.Chunk(lives, activityBatch) {
		current := p.activities(chunk)
		err := p.store.Drain(context.Background(), func(tx *store.Tx) error {
			tx.Patient()
			for _, a := range current {
				tx.Exec(updateActivity, a.last, a.Sent, a.Received, a.Processed, a.row)
			}
			return nil
		})
		p.written(chunk, current, err != nil, p.clock.Now())
		if err != nil {
			p.zap.Warn("the activity of agents could not be written; trying again",
				zap.Int("agents", len(chunk)), zap.Error(err))
		}
	}
}

func (p *Presence) activities(lives []*life) []activity {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]activity, len(lives))
	for i, l := range lives {
		list[i] = l.activity
	}
	return list
}

// written notes that the rows of agents have these activities, unless the write has failed.
func (p *Presence) written(lives []*life, rows []activity, failed bool, now time.Time) {
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
