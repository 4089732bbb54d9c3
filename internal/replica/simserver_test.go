package replica_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store/postgres"
)

var errCut = errors.New("the server does not answer")

// A simServer is what the election needs of PostgreSQL.
type simServer struct {
	mu      sync.Mutex
	down    bool
	holder  *simSession // of the lock; nil if it is free
	epoch   int64
	commits int
	rows    map[string]*simRow
}

// A simRow is a replica in the list.
type simRow struct {
	postgres.Replica
	signed, led time.Time
}

// A simSession is a connection of a writer.
type simSession struct {
	ended bool
	spoke time.Time
}

// end ends a connection, and with it its lock. The caller has the mutex.
func (s *simServer) end(session *simSession) {
	session.ended = true
	if s.holder == session {
		s.holder = nil
	}
}

// travel is the way of a request or an answer: an error if it gets lost.
func (p *simProcess) travel(ctx context.Context) error {
	p.mu.Lock()
	delay := time.Duration(p.rng.Int64N(int64(3 * time.Millisecond)))
	p.mu.Unlock()
	wait(context.Background(), delay)
	for {
		p.mu.Lock()
		dead, barrier, frozen := p.dead, p.barrier, p.frozen
		p.mu.Unlock()
		switch {
		case dead:
			return errCut
		case barrier == nil:
			return ctx.Err()
		case frozen: // it notices nothing
			<-barrier
		default:
			select {
			case <-barrier:
			case <-ctx.Done():
				return errCut
			}
		}
	}
}

// ask runs a statement on the server.
func (p *simProcess) ask(ctx context.Context, run func(s *simServer, now time.Time) error) error {
	if err := p.travel(ctx); err != nil {
		return lost(err)
	}
	s := &p.of.server
	s.mu.Lock()
	err := lost(errCut)
	if !s.down {
		err = run(s, time.Now())
	}
	s.mu.Unlock()
	if e := p.travel(ctx); e != nil {
		return lost(e)
	}
	return err
}

func lost(err error) error {
	return fault.New(fault.Unavailable, postgres.ReasonLost, "the connection is lost: %v", err)
}

// Sign implements replica.Roster.
func (p *simProcess) Sign(ctx context.Context, me postgres.Replica) error {
	return p.ask(ctx, func(s *simServer, now time.Time) error {
		row := s.rows[me.Address]
		if row == nil || string(row.Certificate) != string(me.Certificate) {
			row = &simRow{Replica: me}
			s.rows[me.Address] = row
		}
		row.signed = now
		return nil
	})
}

// Lead implements replica.Roster.
func (p *simProcess) Lead(ctx context.Context, me postgres.Replica, epoch int64) (entered bool, err error) {
	err = p.ask(ctx, func(s *simServer, now time.Time) error {
		row := s.rows[me.Address]
		if row != nil && string(row.Certificate) == string(me.Certificate) && s.epoch == epoch {
			row.Epoch, row.led, entered = epoch, now, true
		}
		return nil
	})
	return entered, err
}

// Leave implements replica.Roster.
func (p *simProcess) Leave(ctx context.Context, me postgres.Replica) error {
	return p.ask(ctx, func(s *simServer, _ time.Time) error {
		if row := s.rows[me.Address]; row != nil && string(row.Certificate) == string(me.Certificate) {
			delete(s.rows, me.Address)
		}
		return nil
	})
}

// Replicas implements replica.Roster.
func (p *simProcess) Replicas(ctx context.Context) (all []postgres.Replica, err error) {
	err = p.ask(ctx, func(s *simServer, now time.Time) error {
		for _, row := range s.rows {
			one := row.Replica
			one.Seen = now.Sub(row.signed)
			if one.Leading = row.Epoch == s.epoch && row.Epoch > 0; one.Leading {
				one.Since = now.Sub(row.led)
			}
			all = append(all, one)
		}
		return nil
	})
	slices.SortFunc(all, func(a, b postgres.Replica) int { return strings.Compare(a.Address, b.Address) })
	return all, err
}

// EndSilent implements replica.Roster.
func (p *simProcess) EndSilent(ctx context.Context) (ended bool, err error) {
	err = p.ask(ctx, func(s *simServer, now time.Time) error {
		if s.holder != nil && now.Sub(s.holder.spoke) > postgres.Lease {
			s.end(s.holder)
			ended = true
		}
		return nil
	})
	return ended, err
}
