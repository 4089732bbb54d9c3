package state

import (
	"context"
	"fmt"
	"math"
	"sync"

	"go.uber.org/zap"

	"brokerd/internal/store"
)

// How much is kept. What is above these for a key or a scope is removed once it is a tenth more.
const (
	keptVersions = 100     // of a key, at least
	keptChanges  = 100_000 // of a scope, whatever their keys
	keptBytes    = 256 << 20
	prunePage    = 500 // versions that one transaction looks at
)

// A pruner removes old versions. It works from the old end of a scope: what it has looked at is below the floor.
type pruner struct {
	keys *Keys
	wake chan struct{} // capacity 1

	mu     sync.Mutex // guards the fields below
	scopes map[int64]volume
}

// A volume is what is above the floor of a scope.
type volume struct {
	changes int64
	bytes   int64
}

func (v volume) exceeds(tenths int64) bool {
	return v.changes > keptChanges/10*tenths || v.bytes > keptBytes/10*tenths
}

func newPruner(k *Keys) *pruner {
	return &pruner{keys: k, wake: make(chan struct{}, 1), scopes: map[int64]volume{}}
}

// load finds out what is there when the broker starts.
func (p *pruner) load(ctx context.Context) error {
	return p.keys.store.Read(ctx, func(snap *store.Snapshot) error {
		rows := snap.Query(sumVersions)
		defer rows.Close()
		for rows.Next() {
			var scope int64
			var v volume
			if err := rows.Scan(&scope, &v.changes, &v.bytes); err != nil {
				return err
			}
			p.scopes[scope] = v
			if v.exceeds(11) {
				p.rouse()
			}
		}
		return rows.Err()
	})
}

// added takes note of a version. It runs in the writer after the commit.
func (p *pruner) added(scope int64, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.scopes[scope]
	v.changes++
	v.bytes += int64(size)
	p.scopes[scope] = v
	if v.exceeds(11) {
		p.rouse()
	}
}

func (p *pruner) rouse() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pruner) run(ctx context.Context) {
	for {
		select {
		case <-p.wake:
		case <-ctx.Done():
			return
		}
		for _, scope := range p.full() {
			if err := p.prune(ctx, scope); err != nil && ctx.Err() == nil {
				p.keys.zap.Warn("old versions of state could not be removed", zap.Error(err))
			}
		}
	}
}

// full returns the scopes that have too much.
func (p *pruner) full() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []int64
	for scope, v := range p.scopes {
		if v.exceeds(11) {
			list = append(list, scope)
		}
	}
	return list
}

// prune looks at the oldest versions of a scope until no more than is kept is above the floor.
func (p *pruner) prune(ctx context.Context, scope int64) error {
	for ctx.Err() == nil {
		p.mu.Lock()
		v := p.scopes[scope]
		p.mu.Unlock()
		if !v.exceeds(10) {
			return nil
		}
		var done volume
		err := p.keys.store.Write(ctx, func(tx *store.Tx) (err error) {
			done, err = prunePageOf(tx, scope, v)
			return err
		})
		if err != nil {
			return fmt.Errorf("prune: %w", err)
		}
		p.mu.Lock()
		v = p.scopes[scope]
		v.changes -= done.changes
		v.bytes -= done.bytes
		p.scopes[scope] = v
		if done.changes == 0 {
			delete(p.scopes, scope) // the session was deleted
		}
		p.mu.Unlock()
	}
	return nil
}

// prunePageOf raises the floor over the oldest versions above it, and removes what is below it and not kept for its key.
func prunePageOf(tx *store.Tx, scope int64, v volume) (done volume, err error) {
	floor, err := floorOf(tx, scope)
	if err != nil {
		return done, err
	}
	var last, revision int64
	var keys []int64
	seen := map[int64]bool{}
	rows := tx.Query(selectOldest, scope, floor, prunePage)
	defer rows.Close()
	for v.exceeds(10) && rows.Next() {
		var key, size int64
		if err := rows.Scan(&last, &key, &revision, &size); err != nil {
			return done, err
		}
		if !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
		v.changes--
		v.bytes -= size
		done.changes++
		done.bytes += size
	}
	if err := rows.Close(); err != nil || done.changes == 0 {
		return done, err
	}
	for _, key := range keys {
		if err := pruneKey(tx, key, last); err != nil {
			return done, err
		}
	}
	tx.Exec(raiseFloor, scope, max(revision, last))
	return done, nil
}

// pruneKey removes the versions of a key up to an id that are not kept, and a tombstone with all of its key.
func pruneKey(tx *store.Tx, key, last int64) error {
	var version, current, first int64
	var kind int
	var deleted bool
	if err := tx.QueryRow(selectStanding, key).Scan(&version, &current, &first, &kind, &deleted); err != nil {
		return err
	}
	old := version - keptVersions
	switch {
	case deleted && current <= last:
		old = math.MaxInt64
		tx.Exec(deleteKey, key)
	case Type(kind) == Document && !deleted:
		last = min(last, first-1)
	}
	if old <= 0 {
		return nil
	}
	tx.Exec(deleteVersions, key, last, old)
	return nil
}

// forget drops what is noted of a scope that is no more.
func (p *pruner) forget(scope int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.scopes, scope)
}
