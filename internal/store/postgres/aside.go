package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// asideLock is the advisory lock that each transaction beside the writer shares while it runs, so that the next broker
// finds it: "brke" in ASCII.
const asideLock = writerLock + 1

// underEpoch fails with a division by zero if another broker has begun to write. It finds the row by a count that it had
// or has: see fence.
const underEpoch = `
SELECT 1 / count(*) FROM meta WHERE id = 1 AND commits >= ? AND epoch = ?`

// runAside runs items as one transaction, which is sent as a whole: nothing of it waits for this process. It checks the
// epoch behind the lock: either it finds the epoch of the next broker, or that broker finds the lock. If the connection
// is lost, runAside runs the items again.
func (c *conn) runAside(items ...item) ([]*pgconn.Result, error) {
	before := []item{
		{word: fmt.Sprintf(`SELECT pg_advisory_xact_lock_shared(%d)`, asideLock)},
		c.item(underEpoch, c.db.commits.Load(), c.db.epoch.Load()),
	}
	items = append(before, items...)
	results, err := c.again(items)
	if err != nil && c.pg == nil {
		results, err = c.again(items)
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "22012" && len(results) < len(before) {
		err = errDeposed()
	}
	return results[min(len(before), len(results)):], err
}

// again sends items on a connection, which it makes if there is none.
func (c *conn) again(items []item) ([]*pgconn.Result, error) {
	if err := c.connect(context.Background()); err != nil {
		return nil, err
	}
	return c.exchange(items...)
}

// endAsides ends the transactions that brokers before this one still run beside their writers.
func (c *conn) endAsides() error {
	var left int64
	err := c.scan(fmt.Sprintf(`
		SELECT count(*) FILTER (WHERE NOT pg_terminate_backend(pid, %d)) FROM pg_locks WHERE `+holds,
		connectTime.Milliseconds(), asideLock), &left)
	if err == nil && left > 0 {
		err = errInUse()
	}
	return err
}
