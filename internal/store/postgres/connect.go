package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"brokerd/internal/store"
)

// connect connects to the server, again if the connection was lost. The writer's connection takes the lock, and refuses
// to go on if another broker has written meanwhile.
func (c *conn) connect(ctx context.Context) error {
	if c.pg != nil {
		return nil
	}
	pg, err := pgconn.ConnectConfig(ctx, c.db.config) // connectTime for each host
	if err != nil {
		return classify(err, true)
	}
	c.pg, c.pending, c.closed, c.begun = pg, nil, nil, false
	c.made++
	if err := c.prepareSession(ctx); err != nil {
		lost := pg.IsClosed()
		c.drop()
		return classify(err, lost)
	}
	return nil
}

func (c *conn) prepareSession(ctx context.Context) error {
	if err := c.set(ctx); err != nil || c.use != store.UseWrite {
		return err
	}
	if err := c.stillLeads(); err != nil {
		return err // at once, and not when it has waited for the lock of the broker that leads now
	}
	err := c.lock(ctx)
	var refused *pgconn.PgError
	inUse := errors.As(err, &refused) && refused.Code == "55P03"
	switch {
	case inUse && c.epoch == 0:
		return errInUse()
	case err != nil && !inUse || c.epoch == 0:
		return err
	}
	if err := c.stillLeads(); err != nil {
		return err
	}
	if inUse {
		return errLost() // another broker may be about to begin
	}
	return nil
}

// stillLeads fails if another broker has begun to write since this one has.
func (c *conn) stillLeads() error {
	if c.epoch == 0 {
		return nil
	}
	var epoch int64
	err := c.scan(`SELECT epoch FROM meta`, &epoch)
	if err == nil && epoch != c.epoch {
		err = errDeposed()
	}
	return err
}

// set checks a new connection and gives it its settings.
func (c *conn) set(ctx context.Context) error {
	if c.use == store.UseWrite && c.epoch == 0 { // before anything that stays with a connection of a pooler
		if err := c.checkPooler(ctx); err != nil { // which takes connectTime for each host
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	own := [...]string{store.UseWrite: writerSettings, store.UseRead: readerSettings, store.UseInspect: inspectorSettings,
		store.UseAside: ``}[c.use]
	if _, err := c.pg.Exec(ctx, settings+own).ReadAll(); err != nil || c.use != store.UseWrite {
		return err
	}
	return c.check()
}

// lock takes the lock of the writer. First it ends the process of the server that had it for this connection before: if
// the network has lost that connection, the server may not know yet.
func (c *conn) lock(ctx context.Context) error {
	if c.db.waits && c.epoch == 0 {
		return c.awaitLock(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	if c.process != "" {
		text := fmt.Sprintf(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE pid = %s AND `+holds,
			c.process, writerLock)
		if _, err := c.pg.Exec(ctx, text).ReadAll(); err != nil {
			return err
		}
	}
	text := fmt.Sprintf(`
		SET lock_timeout = '%ds'; SELECT pg_advisory_lock(%d); SET lock_timeout = 0;
		SELECT pg_backend_pid(), pg_is_in_recovery()`, int(connectTime.Seconds())-1, writerLock)
	results, err := c.pg.Exec(ctx, text).ReadAll()
	if err != nil {
		return err
	}
	return c.locked(results[len(results)-1].Rows[0])
}

// locked notes the process of the server that has the lock, unless the server is a standby: the lock is not the
// primary's then, and the server may lack commits.
func (c *conn) locked(is [][]byte) error {
	if c.process = string(is[0]); string(is[1]) == "t" {
		return errReadOnly()
	}
	return nil
}

// awaitLock takes the lock as soon as no other broker has it, until ctx ends. It asks again and again: a statement that
// waits for the lock would keep the server from removing old versions of rows.
func (c *conn) awaitLock(ctx context.Context) error {
	text := fmt.Sprintf(`SELECT pg_backend_pid(), pg_is_in_recovery(), pg_try_advisory_lock(%d)`, writerLock)
	for {
		asking, cancel := context.WithTimeout(ctx, connectTime)
		results, err := c.pg.Exec(asking, text).ReadAll()
		cancel()
		if err != nil {
			return err
		}
		if is := results[0].Rows[0]; string(is[2]) == "t" {
			return c.locked(is)
		}
		select {
		case <-c.db.clock.After(retryPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// holds is the condition for rows of pg_locks of an advisory lock of this database.
const holds = `locktype = 'advisory' AND classid = 0 AND objid = %d
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
