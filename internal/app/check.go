package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"brokerd/internal/admin"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// InUse reports whether an error of Start, Run or Check says that another daemon runs on the data
// folder.
func InUse(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Reason == "IN_USE"
}

// Check looks over a data folder, or a database on a server, while no daemon runs on it. It returns what is
// wrong, one line each, and a line on what was counted. It makes no folder and no database, and with Store it uses no
// data folder.
func Check(ctx context.Context, c Config) (problems []string, counted string, err error) {
	if c, err = c.alone(); err != nil {
		return nil, "", err
	}
	// The check follows. It leaves the log alone, since a program such as Litestream may replicate it.
	st, err := openStore(ctx, c, store.Options{Existing: true, Unchecked: true, Checkpoint: store.CheckpointExternal}, nil)
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if e := st.Close(); e != nil {
			err = errors.Join(err, e)
		}
	}()
	problems, totals, err := c.inspect(ctx, st, events.New(st, c.Clock, c.Log))
	if err != nil {
		return nil, "", err
	}
	if n := st.Stats().LeftOut; n > 0 {
		problems = append(problems, fmt.Sprintf("the write-ahead log had %d bytes of commits behind a damaged place, "+
			"which SQLite has left out: confirmed changes are missing", n))
	}
	return problems, fmt.Sprintf("%d messages, %d deliveries, %d events, revision %d",
		totals.Messages, totals.Deliveries, totals.Events, totals.Revision), nil
}

// inspect checks a store without other users, with the contents of artifacts, for which it makes no folder.
func (c Config) inspect(ctx context.Context, st *store.Store, journal *events.Log) ([]string, admin.Totals, error) {
	t := tables{hashes: true}
	_, err := os.Stat(c.contentsFolder())
	if c.contentsFolder() == "" || err == nil {
		if t.contents, err = c.contents(st); err != nil {
			return nil, admin.Totals{}, err
		}
		defer func() { _ = t.contents.Close() }() // it is only read
	}
	return admin.NewInspector(st, t, journal).Check(ctx)
}
