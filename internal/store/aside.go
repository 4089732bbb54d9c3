package store

import (
	"context"
	"errors"
	"fmt"
)

// asides is how many connections make changes beside the writer.
const asides = 2

// A Change is a statement that changes rows, with its arguments.
type Change struct {
	Query string
	Args  []any
}

// Aside makes changes in one transaction beside the writer, which does not wait for them. They are for rows that no
// function reads before the writer has committed another row that names them, such as the contents of artifacts. They
// are as safe as what the writer commits when Aside returns. If the connection is lost, Aside makes them again, so they
// must be such that a repetition does no harm.
//
// SQLite has one writer at a time, so only a store on a server makes changes beside it. Errors: fault.Canceled and
// fault.Deadline if the caller gives up before a connection is free; fault.Unavailable after Close, and if the server
// fails.
func (s *Store) Aside(ctx context.Context, changes ...Change) error {
	if s.asides == nil {
		return errors.New("change rows beside the writer: SQLite has one writer at a time")
	}
	c, err := s.asides.take(ctx, s.closing)
	if err != nil {
		return err
	}
	defer s.asides.give(c)
	if err := c.change(changes); err != nil {
		return fmt.Errorf("change rows beside the writer: %w", err)
	}
	return nil
}

// change runs all changes at once.
func (c *conn) change(changes []Change) error {
	var d Deferred
	for i, change := range changes {
		if err := d.add(nil, change.Query, change.Args); err != nil {
			return err
		}
		st, err := c.find(change.Query, len(change.Args), true)
		if err != nil {
			return err
		}
		d.statements[i].statement = st
	}
	_, err := c.db.Run(&d, len(changes))
	return c.classify(err)
}
