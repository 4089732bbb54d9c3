package postgres

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

const (
	// writerLock is the advisory lock of the broker that writes: "brkd" in ASCII.
	writerLock = 0x62726b64

	oldestVersion = 150000 // in the form of server_version_num

	connectTime = 5 * time.Second        // for one host, and then for the settings and the lock
	outcomeTime = 30 * time.Second       // to learn whether a transaction was committed
	retryPause  = 100 * time.Millisecond // between two attempts
)

// settings are those of every connection, whatever the role or the database has been given. The server notices within
// 30 s that a connection was cut, and frees the lock of the writer: see dialer.
//
// Statements are written for SQLite, which joins tables by nested loops along their indexes and knows nothing else. So
// does PostgreSQL here, whatever it believes about the sizes of tables, which change faster than it learns of them.
const settings = `
SET application_name = 'brokerd';
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_session_timeout = 0;
SET idle_in_transaction_session_timeout = '60s';
SET default_transaction_isolation = 'read committed';
SET synchronous_commit = on;
SET tcp_keepalives_idle = 15;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3;
SET tcp_user_timeout = '30s';
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SET jit = off;
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET max_parallel_workers_per_gather = 0;
SET plan_cache_mode = force_generic_plan;
`

// writerSettings are those of the writer's connection besides.
const writerSettings = `
SET enable_bitmapscan = off;
`

// inspectorSettings are those of connections that read whole tables besides.
const inspectorSettings = `
SET default_transaction_read_only = on;
SET idle_in_transaction_session_timeout = 0;
SET enable_seqscan = on;
SET enable_hashjoin = on;
SET enable_mergejoin = on;
SET max_parallel_workers_per_gather = DEFAULT;
SET plan_cache_mode = auto;
`

// readerSettings are those of connections that only read besides. No statement of a snapshot takes as long as this.
const readerSettings = `
SET default_transaction_read_only = on;
SET statement_timeout = '15s';
`

// A Database is a PostgreSQL database in which one broker at a time keeps its tables. It implements store.Database.
type Database struct {
	config  *pgconn.Config
	options url.Values // of the URL, without passwords
	clock   clockwork.Clock
	seen    func() Seen // see Expect
	waits   bool        // see StandBy
	standby bool        // see RequireStandby

	fence, fenceCounted string // of every commit

	trips   atomic.Uint64 // of the writer
	types   sync.Map      // of parameters, by the text of the statement: see typesOf
	epoch   atomic.Int64  // of the broker that leads by this value; 0 before Lead
	commits atomic.Int64  // how many meta counts, as far as this broker knows
	made    atomic.Int64  // the instance of the database; 0 before Lead
}

// New returns the database of a URL such as postgres://broker@host/brokerd, without connecting to it. What the URL
// leaves out comes from PostgreSQL's usual environment variables and files, such as .pgpass. An empty password changes
// nothing.
func New(address, password string, clock clockwork.Clock) (*Database, error) {
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return nil, fault.Field("store", "must be the URL of a PostgreSQL database, postgres://USER@HOST/DATABASE: "+
			"without one, the data is in a SQLite database in the data folder")
	}
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		return nil, fault.Field("store", "%v", err) // without the password
	}
	if password != "" {
		config.Password = password
	}
	if config.ConnectTimeout <= 0 || config.ConnectTimeout > connectTime {
		config.ConnectTimeout = connectTime
	}
	config.DialFunc = dialer().DialContext
	config.LookupFunc = lookUp
	d := &Database{config: config, options: url.Values{}, clock: clock, fence: fence, fenceCounted: fenceCounted}
	if u, err := url.Parse(address); err == nil { // not with several ports
		d.options = u.Query()
	}
	d.options.Del("password")
	d.options.Del("sslpassword")
	if filepath.IsAbs(config.Host) {
		d.options.Set("host", config.Host) // the folder of a Unix socket
	}
	return d, nil
}

// StandBy has the writer's connection wait until no other broker has the lock, or until the context of Connect ends.
func (d *Database) StandBy() { d.waits = true }

// Expect has Lead refuse a server that lacks something of what seen returns: fault.Precondition (COMMITS_LOST).
func (d *Database) Expect(seen func() Seen) { d.seen = seen }

// RequireStandby refuses a server that does not wait for a synchronous standby, and every commit on one that no longer
// does: fault.Unavailable (NO_STANDBY).
func (d *Database) RequireStandby() {
	d.standby = true
	for _, text := range []*string{&d.fence, &d.fenceCounted} {
		*text = strings.Replace(*text, `SELECT 1 / count(*)`, `SELECT 1 / count(*)`+withStandby, 1)
	}
}

// Name returns the URL of the database without a password.
func (d *Database) Name() string {
	u := url.URL{Scheme: "postgres", User: url.User(d.config.User), Path: "/" + d.config.Database}
	if !filepath.IsAbs(d.config.Host) {
		u.Host = net.JoinHostPort(d.config.Host, strconv.Itoa(int(d.config.Port)))
	}
	// A slash needs no escape there, and people read it.
	u.RawQuery = strings.ReplaceAll(d.options.Encode(), "%2F", "/")
	return u.String()
}

// Connect implements store.Database. Connections of a pool are made when they are first used.
func (d *Database) Connect(ctx context.Context, use store.Use) (store.Conn, error) {
	c := &conn{db: d, use: use, own: map[string]*stmt{}}
	if use == store.UseRead || use == store.UseAside {
		return c, nil
	}
	if err := c.connect(ctx); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", d.Name(), withCause(err))
	}
	return c, nil
}

// lookUp returns the addresses of a host.
func lookUp(ctx context.Context, host string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	return net.DefaultResolver.LookupHost(ctx, host)
}

// dialer notices within 30 s that a connection was cut, also while it waits for an answer.
func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		Control:         limitSilence,
	}
}

// functions are those of SQLite's that PostgreSQL lacks and statements use.
const functions = `
CREATE FUNCTION json_valid(text TEXT) RETURNS BOOLEAN IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	RETURN text::json IS NOT NULL;
EXCEPTION WHEN invalid_text_representation THEN
	RETURN FALSE;
END $$;
CREATE FUNCTION json_type(text TEXT) RETURNS TEXT IMMUTABLE LANGUAGE sql AS 'SELECT json_typeof(text::json)';
`

// Made implements store.Database.
func (d *Database) Made(sc store.Conn) (bool, error) {
	c := sc.(*conn)
	var tables, own int64
	err := c.scan(`SELECT count(*), count(*) FILTER (WHERE relname = 'meta' AND EXISTS (
			SELECT 1 FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'epoch'))
		FROM pg_class
		WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')`, &tables, &own)
	switch {
	case err != nil || own > 0:
		return own > 0, err
	case tables > 0:
		return false, fault.New(fault.Precondition, "FOREIGN_DATABASE",
			"the database has %d tables that are not brokerd's: name an empty database", tables)
	}
	return false, nil
}

// Create implements store.Database.
func (d *Database) Create(sc store.Conn, schema string) error {
	return sc.Script(schema + functions + rosterTable + `
		ALTER TABLE meta ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0;   -- raised by each broker that begins to write
		ALTER TABLE meta ADD COLUMN commits BIGINT NOT NULL DEFAULT 0; -- transactions
		ALTER TABLE meta DROP CONSTRAINT meta_pkey;
		CREATE UNIQUE INDEX meta_commits ON meta (id, commits DESC); -- the newest version first; for fence and snapshots`)
}

// sequences has each table count on from its highest key: rows with keys of their own do not move a sequence. It never
// moves one back, because keys are not used again.
const sequences = `
DO $$
DECLARE
	r RECORD;
	highest BIGINT;
BEGIN
	FOR r IN
		SELECT table_name, column_name, pg_get_serial_sequence(quote_ident(table_name), column_name) AS sequence
		FROM information_schema.columns
		WHERE table_schema = current_schema() AND is_identity = 'YES'
	LOOP
		EXECUTE format('SELECT max(%I) FROM %I', r.column_name, r.table_name) INTO highest;
		EXECUTE format('SELECT setval(%L, $1) FROM %s WHERE last_value <= $1', r.sequence, r.sequence) USING highest;
	END LOOP;
END $$`

// CountOn implements store.Database.
func (d *Database) CountOn(sc store.Conn) error { return sc.Script(sequences) }

// Lead implements store.Database.
func (d *Database) Lead(sc store.Conn) error {
	c := sc.(*conn)
	var has Seen
	err := c.scan(`SELECT instance, revision, commits FROM meta WHERE id = 1`, &has.Instance, &has.Revision, &has.Commits)
	if err == nil && d.seen != nil {
		err = has.holds(d.seen())
	}
	if err != nil {
		return err
	}
	var commits int64
	err = c.scan(`UPDATE meta SET epoch = epoch + 1, commits = commits + 1 RETURNING epoch, commits`, &c.epoch, &commits)
	if err != nil {
		return err
	}
	d.epoch.Store(c.epoch)
	d.commits.Store(commits)
	d.made.Store(has.Instance)
	return c.endAsides()
}

// Led returns the epoch under which this broker leads, and what it knows to be in the database.
func (d *Database) Led() (epoch int64, seen Seen) {
	return d.epoch.Load(), Seen{Instance: d.made.Load(), Commits: d.commits.Load()}
}

// Facts implements store.Database.
func (d *Database) Facts(sc store.Conn) (store.Facts, error) {
	var size, standby, synced int64
	err := sc.(*conn).scan(`SELECT pg_database_size(current_database()), current_setting('synchronous_standby_names') <> '',
		current_setting('fsync')::boolean`, &size, &standby, &synced)
	f := store.Facts{Bytes: size, Standby: standby != 0, RoundTrips: d.trips.Load()}
	switch {
	case synced == 0:
		f.Confirmed = "in the memory of PostgreSQL's machine: it has fsync = off"
	case f.Standby:
		f.Confirmed = "on the disks of the primary and of a synchronous standby"
	default:
		f.Confirmed = "on the primary's disk: if that machine is lost, the newest confirmed messages can be lost"
	}
	return f, err
}

// check refuses a server and a database that are unfit.
func (c *conn) check() error {
	var version int64
	if err := c.scan(`SELECT CAST(current_setting('server_version_num') AS BIGINT)`, &version); err != nil {
		return err
	}
	if version < oldestVersion {
		return fault.New(fault.Precondition, "OLD_POSTGRESQL", "the database is PostgreSQL %d, brokerd needs %d or later",
			version/10000, oldestVersion/10000)
	}
	if c.db.standby {
		var waits int64
		if err := c.scan(`SELECT current_setting('synchronous_standby_names') <> ''`, &waits); err != nil {
			return err
		}
		if waits == 0 {
			return errNoStandby()
		}
	}
	if c.db.waits {
		var tracks int64
		if err := c.scan(`SELECT current_setting('track_activities')::boolean`, &tracks); err != nil {
			return err
		}
		if tracks == 0 {
			return fault.New(fault.Precondition, "ACTIVITIES_UNTRACKED", "the server has track_activities = off, "+
				"so that replicas cannot see whether the leader is silent: set it to on")
		}
	}
	var bytewise, utf8 int64
	err := c.scan(`SELECT datlocprovider = 'c' AND datcollate IN ('C', 'POSIX'), pg_encoding_to_char(encoding) = 'UTF8'
		FROM pg_database WHERE datname = current_database()`, &bytewise, &utf8)
	if err != nil {
		return err
	}
	if bytewise == 0 || utf8 == 0 {
		name := c.db.config.Database
		return fault.New(fault.Precondition, "WRONG_COLLATION",
			"the database %s does not have texts of UTF-8 in the order of their bytes, which brokerd needs: make one with "+
				`CREATE DATABASE %s ENCODING 'UTF8' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0`, name, quote(name))
	}
	return nil
}

// checkPooler refuses a pooler that gives one connection of the server to several clients in turn, as PgBouncer does
// with pool_mode = transaction. The lock and the settings of the writer would be those of others. Such a pooler gives
// another client the connection that the writer has just used, or the writer another one while that client keeps it.
func (c *conn) checkPooler(ctx context.Context) error {
	other, err := pgconn.ConnectConfig(ctx, c.db.config)
	if err != nil {
		return classify(err, true)
	}
	defer func() { _ = other.Close(ctx) }() // it has only read
	before, err := backend(ctx, c.pg, ``)
	if err != nil {
		return err
	}
	taken, err := backend(ctx, other, `BEGIN; `)
	if err != nil {
		return err
	}
	after, err := backend(ctx, c.pg, ``)
	if err == nil && (taken == before || after != before) {
		err = errPooler()
	}
	return err
}

// backend returns the server's process for a connection, after another statement.
func backend(ctx context.Context, pg *pgconn.PgConn, first string) (string, error) {
	results, err := pg.Exec(ctx, first+`SELECT pg_backend_pid()`).ReadAll()
	if err != nil {
		return "", classify(err, pg.IsClosed())
	}
	return string(results[len(results)-1].Rows[0][0]), nil
}

func errPooler() error {
	return fault.New(fault.Precondition, "TRANSACTION_POOLER",
		"a pooler between brokerd and PostgreSQL shares connections between transactions, so that brokerd cannot keep its lock: "+
			"connect to PostgreSQL itself, or set the pooler to sessions (PgBouncer: pool_mode = session)")
}

func errDeposed() error {
	return fmt.Errorf("%w: another brokerd has begun to write to the database, or the server has lost commits", store.ErrUnknown)
}

func errInUse() error {
	return fault.New(fault.Precondition, "IN_USE", "another brokerd writes to the database: stop that one first, or name another database")
}

func errNoStandby() error {
	return fault.New(fault.Unavailable, ReasonNoStandby,
		"the database waits for no synchronous standby, without which this broker confirms nothing: set synchronous_standby_names")
}

// quote quotes a name for a statement.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
