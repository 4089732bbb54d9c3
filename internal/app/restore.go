package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"brokerd/internal/backup"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// A Restored describes a data folder that was made from a backup.
type Restored struct {
	backup.Manifest
	Next int64 // the first revision after the jump of the counter: that of the event broker.restored
}

// An Adopted describes a database that another program has restored.
type Adopted struct {
	Name     string   // its folder or URL
	Last     int64    // the revision of the backup
	Next     int64    // the first revision after the jump of the counter
	Problems []string // that a check has found, such as artifacts whose contents are missing
}

// Restore makes a data folder from a backup. The folder must be new, empty or left by an interrupted
// Restore. It compares all hashes and checks the database as Check does; if anything is wrong, it
// removes what it has written. Then the counter jumps by 10^12, and the event broker.restored is
// appended, in one transaction.
func Restore(ctx context.Context, c Config, from io.Reader) (r Restored, err error) {
	if c, err = c.complete(); err != nil {
		return r, err
	}
	folder, err := backup.Claim(c.Dir)
	if err != nil {
		return r, err
	}
	if r.Manifest, err = folder.Unpack(cancelable{ctx, from}); err == nil {
		r.Next, err = adopt(ctx, c, r.Manifest)
	}
	if err != nil {
		return r, errors.Join(err, folder.Discard())
	}
	return r, folder.Finish()
}

// NoteRestored notes that another program, such as pg_restore or Litestream, has restored the database:
// the counter jumps as in Restore. It uses no data folder with Store.
func NoteRestored(ctx context.Context, c Config) (a Adopted, err error) {
	if c, err = c.alone(); err != nil {
		return a, err
	}
	// The check follows.
	st, err := openStore(ctx, c, store.Options{Existing: true, Unchecked: true, Checkpoint: store.CheckpointExternal}, nil)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	journal := events.New(st, c.Clock, c.Log)
	a.Problems, _, err = c.inspect(ctx, st, journal)
	if err != nil {
		return a, err
	}
	if a.Name = c.Dir; st.OnServer() {
		a.Name = st.Name()
	}
	a.Last = st.Revision()
	a.Next, err = jump(ctx, st, journal, map[string]any{})
	return a, err
}

// adopt checks an unpacked database with the contents beside it, and notes that it was restored.
func adopt(ctx context.Context, c Config, m backup.Manifest) (next int64, err error) {
	c.Artifacts = ""
	st, err := openStore(ctx, c, store.Options{Unchecked: true, Restoring: true}, nil) // the check follows
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	journal := events.New(st, c.Clock, c.Log)
	problems, _, err := c.inspect(ctx, st, journal)
	if err != nil {
		return 0, err
	}
	if st.Revision() != m.Revision || st.InstanceID() != m.InstanceID {
		problems = append(problems, fmt.Sprintf("the database has revision %d of instance %d", st.Revision(), st.InstanceID()))
	}
	if len(problems) > 0 {
		return 0, fault.New(fault.Precondition, "DAMAGED_BACKUP",
			"the backup is damaged: the check of its contents found %d problems, first: %s; use another one", len(problems), problems[0])
	}
	return jump(ctx, st, journal, map[string]any{"backup_created_at": m.CreatedAt.Format(time.RFC3339Nano)})
}

// jump makes the counter jump and appends broker.restored, in one transaction. facts are further details
// of the event.
func jump(ctx context.Context, st *store.Store, journal *events.Log, facts map[string]any) (next int64, err error) {
	err = st.Write(ctx, func(tx *store.Tx) error {
		last, first := tx.Restored()
		facts["last_revision"], facts["next_revision"] = last, first
		details, err := json.Marshal(facts)
		if err != nil {
			return err
		}
		next, err = journal.Append(tx, events.Entry{
			Category: events.System, Type: "broker.restored", Severity: events.Warning, Source: identity.System,
			Summary: fmt.Sprintf("the broker was restored from a backup of revision %d", last), Details: string(details),
		})
		return err
	})
	return next, err
}

// cancelable reads until its context ends.
type cancelable struct {
	ctx  context.Context
	from io.Reader
}

// Read implements io.Reader.
func (c cancelable) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.from.Read(p)
}
