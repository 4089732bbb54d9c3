package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// A conn is a connection to the server. It implements store.Conn. When it is lost, the next transaction connects again.
type conn struct {
	db    *Database
	use   store.Use
	pg    *pgconn.PgConn // nil when it is lost
	made  int            // how often it was connected
	named int            // statements that it has prepared

	pending []item         // words, and statements of Leave, to send before the next statement
	begun   bool           // StepBegin or StepRead was taken, and no end
	sent    bool           // something of the transaction was sent
	counter *store.Counter // to store at the commit
	closed  []string       // names of statements that are not needed any more

	own map[string]*stmt // statements of the engine's own, by query

	limit context.Context // of what is sent; nil = none

	epoch   int64  // under which the writer commits; 0 before Lead
	process string // of the server, for the writer: the one that had its lock
}

// An item is what is sent at one time with others: a word, or a statement with its arguments.
type item struct {
	word string
	stmt *stmt
	args []driver.NamedValue

	each bool                  // it comes from ExecEach
	rows [][]driver.NamedValue // arguments of several statements that are gathered: see gather
	of   []int                 // their numbers in the queue
}

// fence counts a transaction, and fails it with a division by zero if another broker has begun to write, or the server
// has lost commits. It finds the row of meta by the count: so it does not read the versions of the row that the server
// must keep while another program has an old snapshot, one for each commit.
const fence = `
WITH counted AS (
	UPDATE meta SET commits = commits + 1 WHERE id = 1 AND commits = ? AND epoch = ? RETURNING id)
SELECT 1 / count(*) FROM counted`

// fenceCounted is fence with a store.Counter.
const fenceCounted = `
WITH counted AS (
	UPDATE meta SET commits = commits + 1, revision = ?, latest = ?, uptime = ?, stopped = 0
	WHERE id = 1 AND commits = ? AND epoch = ? RETURNING id)
SELECT 1 / count(*) FROM counted`

// withStandby makes a fence fail with another error as well, if the server waits for no synchronous standby. It is no
// constant, whose error would be that of the preparation.
const withStandby = `,
	CASE WHEN current_setting('synchronous_standby_names') = ''
		THEN CAST('none' || current_setting('synchronous_standby_names') AS INTEGER) END`

// drop gives the connection up, and with it the transaction.
func (c *conn) drop() {
	if c.pg != nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // so that nothing is waited for
		_ = c.pg.Close(ctx)
	}
	c.pg, c.pending, c.counter, c.begun, c.sent = nil, nil, nil, false, false
}

// exchange sends the words that wait, and items, and returns the results of the items. If one fails it returns the
// results of those before it. If the connection was lost before the transaction began, exchange connects again.
func (c *conn) exchange(items ...item) ([]*pgconn.Result, error) {
	words, fresh := c.pending, c.begun && !c.sent
	results, err := c.try(items)
	if err != nil && c.pg == nil && fresh && !ends(items) && !errors.Is(err, store.ErrUnknown) {
		if err = c.connect(context.Background()); err != nil {
			return nil, err
		}
		c.begun, c.pending = true, words
		results, err = c.try(items)
	}
	return results, err
}

func ends(items []item) bool { return len(items) > 0 && items[len(items)-1].word == `COMMIT` }

// try is exchange on the connection as it is.
func (c *conn) try(items []item) ([]*pgconn.Result, error) {
	for _, i := range slices.Concat(c.pending, items) {
		st, args := i.stmt, i.args
		if i.rows != nil {
			st, args = i.stmt.gather.stmt, nil // the types are known
		}
		if st != nil {
			if err := st.prepare(args); err != nil {
				return nil, err
			}
		}
	}
	words := c.pending
	c.pending = nil
	results, err := c.send(slices.Concat(words, items))
	return results[min(len(words), len(results)):], err
}

// send sends items and reads all results.
func (c *conn) send(items []item) ([]*pgconn.Result, error) {
	if c.pg == nil {
		return nil, errLost()
	}
	if len(items) == 0 {
		return nil, nil
	}
	var batch pgconn.Batch
	skipped := 0
	if c.pg.TxStatus() != 'E' {
		for _, name := range c.closed {
			batch.ExecParams(`DEALLOCATE `+name, nil, nil, nil, nil)
		}
		skipped, c.closed = len(c.closed), nil
	}
	for _, i := range items {
		if i.stmt == nil {
			batch.ExecParams(i.word, nil, nil, nil, nil)
			continue
		}
		st := i.stmt
		var values [][]byte
		var formats []int16
		var err error
		if i.rows != nil {
			st = i.stmt.gather.stmt
			values, formats, err = i.stmt.gather.bindRows(i.rows)
		} else {
			values, formats, err = st.bind(i.args)
		}
		if err != nil {
			return nil, err
		}
		batch.ExecStatement(st.description, values, formats, st.formats)
	}
	c.sent = c.begun
	if c.use == store.UseWrite {
		c.db.trips.Add(1)
	}
	ctx := context.Background()
	if c.limit != nil {
		ctx = c.limit
	}
	results, err := c.pg.ExecBatch(ctx, &batch).ReadAll()
	if n := len(results); n > 0 && results[n-1].Err != nil {
		err = errors.Join(results[n-1].Err, err)
		results = results[:n-1]
	}
	var refused *pgconn.PgError
	// Another connection may find the server changed, or another server.
	readOnly := errors.As(err, &refused) && refused.Code == "25006"
	if c.pg.IsClosed() || readOnly {
		c.drop()
	}
	return results[min(skipped, len(results)):], classify(err, c.pg == nil)
}

const beginRead = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`

// Do implements store.Conn. Words wait for the next statement, except the last ones of a transaction.
func (c *conn) Do(step store.Step) error {
	switch step {
	case store.StepBegin, store.StepRead:
		if err := c.connect(context.Background()); err != nil {
			return err
		}
		word := `BEGIN`
		if step == store.StepRead {
			word = beginRead
		}
		c.pending, c.begun, c.sent, c.counter = append(c.pending, item{word: word}), true, false, nil
	case store.StepMark:
		c.pending = append(c.pending, item{word: `SAVEPOINT fn`})
	case store.StepRelease:
		c.pending = append(c.pending, item{word: `RELEASE fn`})
	case store.StepUndo:
		if n := len(c.pending); n > 0 && c.pending[n-1].word == `SAVEPOINT fn` {
			c.pending = c.pending[:n-1]
		} else {
			c.pending = append(c.pending, item{word: `ROLLBACK TO fn`}, item{word: `RELEASE fn`})
		}
	case store.StepRollback:
		return c.end(`ROLLBACK`)
	case store.StepCommit:
		return c.commit()
	}
	return nil
}

// end ends the transaction. A rollback sends none of the words that wait, and itself only if the transaction has begun
// at the server.
func (c *conn) end(word string, before ...item) error {
	sent := c.sent
	c.begun, c.sent, c.counter = false, false, nil
	if !sent && word == `ROLLBACK` || c.pg == nil {
		c.pending = nil
		return nil
	}
	if word == `ROLLBACK` {
		c.pending = nil
	}
	results, err := c.exchange(append(before, item{word: word})...)
	if err == nil && results[len(results)-1].CommandTag.String() != word {
		err = fmt.Errorf("PostgreSQL answers %s with %s", word, results[len(results)-1].CommandTag)
	}
	if c.pg != nil && c.pg.TxStatus() != 'I' { // a statement before the word has failed
		_, ended := c.send([]item{{word: `ROLLBACK`}})
		err = errors.Join(err, ended)
	}
	return err
}

// commit commits the transaction with its fence. If the answer is lost, it looks what has become of the transaction.
// One that was not committed, and of which nothing had been sent before, is sent again.
func (c *conn) commit() error {
	waiting, begun, counter := c.pending, c.sent, c.counter
	err := c.commitOnce()
	var f *fault.Error
	if begun || c.pg == nil || !errors.As(err, &f) || f.Reason != ReasonLost {
		return err
	}
	c.pending, c.counter = waiting, counter
	return c.commitOnce()
}

func (c *conn) commitOnce() error {
	switch {
	case c.pg == nil:
		return errLost()
	case c.counter == nil && !c.sent:
		return c.end(`ROLLBACK`)
	case c.epoch == 0:
		return c.end(`COMMIT`)
	}
	text, values := c.db.fence, []driver.Value{c.db.commits.Load(), c.epoch}
	if n := c.counter; n != nil {
		text, values = c.db.fenceCounted, append([]driver.Value{n.Revision, n.Latest, int64(n.Uptime)}, values...)
	}
	err := c.end(`COMMIT`, c.item(text, values...))
	var refused *pgconn.PgError
	switch {
	case err == nil:
		c.db.commits.Add(1)
		return nil
	case errors.As(err, &refused) && refused.Code == "22012": // no other statement divides
		return errDeposed()
	case errors.As(err, &refused) && refused.Code == "22P02" && c.db.standby:
		return errNoStandby()
	case c.pg == nil:
		return c.outcome(err)
	}
	return err
}

// outcome returns nil if the transaction whose commit was not answered was committed, and the error if not. The
// connection that gets the lock knows, since the server has ended the one before. A server that stops, or ends that
// connection on demand, may not have waited for a synchronous standby: so outcome makes another commit, whose answer
// says that the standby has both.
func (c *conn) outcome(lost error) error {
	before := c.db.commits.Load()
	ctx, cancel := context.WithTimeout(context.Background(), outcomeTime)
	defer cancel()
	c.limit = ctx // a commit waits for a standby however long it takes
	defer func() { c.limit = nil }()
	for {
		err := c.connect(ctx)
		if err == nil {
			var commits int64
			err = c.scan(`SELECT commits FROM meta`, &commits)
			if err == nil && commits <= before {
				c.db.commits.Store(before) // what follows may not have been kept
				return lost
			}
			if err == nil {
				c.db.commits.Store(commits)
				_, err = c.exchange(c.item(c.db.fence, commits, c.epoch))
			}
			if err == nil {
				c.db.commits.Add(1)
				return nil
			}
		}
		if errors.Is(err, store.ErrUnknown) {
			return err
		}
		select {
		case <-c.db.clock.After(retryPause):
		case <-ctx.Done():
			return fmt.Errorf("%w: PostgreSQL has not answered a commit, and cannot be reached: %w", store.ErrUnknown, err)
		}
	}
}

// Count implements store.Conn.
func (c *conn) Count(n store.Counter) error {
	c.counter = &n
	return nil
}

// State implements store.Conn.
func (c *conn) State() store.State {
	switch {
	case c.pg == nil || !c.begun:
		return store.StateEnded
	case c.pg.TxStatus() == 'E' && !c.undone():
		return store.StateFailed
	}
	return store.StateOpen
}

// undone reports whether a return to the savepoint waits to be sent.
func (c *conn) undone() bool {
	return slices.ContainsFunc(c.pending, func(i item) bool { return i.word == `ROLLBACK TO fn` })
}

// Script implements store.Conn. The text is SQLite's.
func (c *conn) Script(text string) error {
	if _, err := c.exchange(); err != nil {
		return err
	}
	if c.pg == nil {
		return errLost()
	}
	c.sent = c.begun
	keys, err := c.keys(text)
	if err == nil {
		_, err = c.pg.Exec(context.Background(), declare(text, keys)).ReadAll()
	}
	if c.pg.IsClosed() {
		c.drop()
	}
	return classify(err, c.pg == nil)
}

// keys returns the columns of the key of each table, if a script declares an index.
func (c *conn) keys(script string) (map[string][]string, error) {
	keys := map[string][]string{}
	if !index.MatchString(script) {
		return keys, nil
	}
	results, err := c.pg.Exec(context.Background(), `
		SELECT i.indrelid::regclass, a.attname
		FROM pg_index i
		JOIN pg_class t ON t.oid = i.indrelid
		JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
		WHERE i.indisprimary AND t.relnamespace = current_schema()::regnamespace
		ORDER BY i.indrelid, array_position(i.indkey::int2[], a.attnum)`).ReadAll()
	if err != nil {
		return nil, err
	}
	for _, row := range results[0].Rows {
		keys[string(row[0])] = append(keys[string(row[0])], string(row[1]))
	}
	return keys, nil
}

// Run implements store.Conn. Of gathered statements, none has succeeded if one fails.
func (c *conn) Run(d *store.Deferred, n int) (int, error) {
	queue := queued(d, n)
	joined := c.gather(queue)
	run := c.exchange
	if c.use == store.UseAside {
		run = c.runAside
	}
	results, err := run(joined...)
	if err != nil && len(joined) < n {
		return 0, err
	}
	rows, wrong := changed(joined[:len(results)], results, n)
	if wrong != nil {
		return 0, wrong
	}
	for i := range len(results) + n - len(joined) {
		d.Changed(i, rows[i])
	}
	return len(results) + n - len(joined), err
}

// queued returns the next n statements that wait.
func queued(d *store.Deferred, n int) []item {
	items := make([]item, 0, n)
	for st, args := range d.Next(n) {
		items = append(items, item{stmt: st.(*stmt), args: slices.Clone(args), each: d.Each(len(items))})
	}
	return items
}

// Leave implements store.Conn.
func (c *conn) Leave(d *store.Deferred, n int) bool {
	if c.undone() { // the server prepares nothing before it has returned to the savepoint
		return false
	}
	c.pending = append(c.pending, c.gather(queued(d, n))...)
	return true
}

// Prepare implements store.Conn. The server prepares the statement when it first runs, with arguments that show the
// types of those that the text leaves open.
func (c *conn) Prepare(query string) (store.Stmt, error) {
	text, inputs := Translate(query)
	return &stmt{conn: c, text: text, inputs: inputs, readonly: readonly(text)}, nil
}

// item returns a statement of the engine's own with its arguments.
func (c *conn) item(query string, values ...driver.Value) item {
	st := c.own[query]
	if st == nil {
		text, inputs := Translate(query)
		st = &stmt{conn: c, text: text, inputs: inputs}
		c.own[query] = st
	}
	i := item{stmt: st}
	for n, v := range values {
		i.args = append(i.args, driver.NamedValue{Ordinal: n + 1, Value: v})
	}
	return i
}

// scan runs a statement that returns one row of integers.
func (c *conn) scan(query string, dest ...*int64) error {
	if c.pg == nil {
		return errLost()
	}
	i := c.item(query)
	results, err := c.exchange(i)
	if err != nil {
		return err
	}
	r := rows{fields: i.stmt.description.Fields, values: results[0].Rows}
	values := make([]driver.Value, len(dest))
	if err := r.Next(values); err != nil {
		return err
	}
	for i, v := range values {
		n, ok := v.(int64)
		if !ok {
			return fmt.Errorf("column %d is a %T: %s", i+1, v, query)
		}
		*dest[i] = n
	}
	return nil
}

// Close implements store.Conn.
func (c *conn) Close() error {
	if c.pg == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	err := c.pg.Close(ctx)
	c.pg = nil
	return classify(err, false)
}
