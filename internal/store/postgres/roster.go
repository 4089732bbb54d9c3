package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Lease is how long the leader may be silent to the server before another replica may end its connection. It speaks at
// least every second: see store.Store.
const Lease = 3 * time.Second

// Absent is after how long without a sign a replica counts as gone.
const Absent = 30 * time.Second

// rosterTable lists the replicas. A program that can write to the database can be a replica: the certificate of a replica is
// valid because it stands here.
const rosterTable = `
CREATE TABLE replicas (
	address     TEXT PRIMARY KEY,     -- where other replicas reach it, HOST:PORT
	certificate BYTEA NOT NULL,       -- its own, in DER
	operator    BYTEA NOT NULL,       -- SHA-256 of the secret of its operator
	version     TEXT NOT NULL,        -- of its brokerd
	seen        TIMESTAMPTZ NOT NULL, -- its last sign
	epoch       BIGINT,               -- under which it last led
	led         TIMESTAMPTZ           -- since when
);`

// A Replica is one brokerd of several on the same database.
type Replica struct {
	Address     string // HOST:PORT at which other replicas reach it
	Certificate []byte // in DER
	Operator    []byte // SHA-256 of the secret in its operator's file
	Version     string

	Seen    time.Duration // since its last sign
	Epoch   int64         // under which it last led; 0 if it never has
	Leading bool
	Since   time.Duration // for which it has led
}

// A Roster is the list of the replicas, as one of them reads and keeps it. Its methods may be called concurrently. Times
// are those of the server.
type Roster struct {
	db   *Database
	seen atomic.Pointer[Seen] // by Replicas; nil before

	mu sync.Mutex     // one statement at a time
	pg *pgconn.PgConn // nil when there is none
}

// Seen returns what this replica has seen of the database.
func (r *Roster) Seen() Seen {
	if s := r.seen.Load(); s != nil {
		return *s
	}
	return Seen{}
}

// NewRoster returns the list of a database, without connecting to it.
func NewRoster(d *Database) *Roster { return &Roster{db: d} }

// Sign enters a replica, which does not lead if its certificate is new, and notes that it is there. It removes those that
// have given no sign for a day.
func (r *Roster) Sign(ctx context.Context, me Replica) error {
	_, err := r.run(ctx, `
		WITH gone AS (
			DELETE FROM replicas WHERE seen < now() - interval '1 day' AND address <> $1)
		INSERT INTO replicas (address, certificate, operator, version, seen)
		VALUES ($1, decode($2, 'hex'), decode($3, 'hex'), $4, now())
		ON CONFLICT (address) DO UPDATE SET certificate = excluded.certificate, operator = excluded.operator,
			version = excluded.version, seen = now(),
			epoch = CASE WHEN replicas.certificate = excluded.certificate THEN replicas.epoch END`,
		[]byte(me.Address), hexOf(me.Certificate), hexOf(me.Operator), []byte(me.Version))
	return err
}

// Lead notes that a replica that has signed leads under an epoch. It reports false, and notes nothing, if another one
// leads by now, or has signed with the same address.
func (r *Roster) Lead(ctx context.Context, me Replica, epoch int64) (bool, error) {
	noted, err := r.run(ctx, `
		UPDATE replicas SET epoch = $3, seen = now(), led = CASE WHEN epoch = $3 THEN led ELSE now() END
		WHERE address = $1 AND certificate = decode($2, 'hex') AND (SELECT epoch FROM meta WHERE id = 1) = $3
		RETURNING 1`,
		[]byte(me.Address), hexOf(me.Certificate), strconv.AppendInt(nil, epoch, 10))
	return len(noted) > 0, err
}

// Leave removes a replica that stops.
func (r *Roster) Leave(ctx context.Context, me Replica) error {
	_, err := r.run(ctx, `DELETE FROM replicas WHERE address = $1 AND certificate = decode($2, 'hex')`,
		[]byte(me.Address), hexOf(me.Certificate))
	return err
}

// Replicas returns all replicas in the list, by address. One that was lost stays in it: see Absent.
func (r *Roster) Replicas(ctx context.Context) ([]Replica, error) {
	rows, err := r.run(ctx, `
		SELECT address, encode(certificate, 'hex'), encode(operator, 'hex'), version,
			(extract(epoch FROM now() - seen) * 1000)::bigint,
			CASE WHEN epoch = (SELECT epoch FROM meta WHERE id = 1) THEN (extract(epoch FROM now() - led) * 1000)::bigint END,
			coalesce(epoch, 0), instance, revision, commits
		FROM replicas, (SELECT instance, revision, commits FROM meta WHERE id = 1) AS m
		ORDER BY address COLLATE "C"`)
	if err != nil {
		return nil, err
	}
	var all []Replica
	seen := r.Seen()
	for _, row := range rows {
		one := Replica{
			Address: string(row[0]), Certificate: unhex(row[1]), Operator: unhex(row[2]), Version: string(row[3]),
			Seen: milliseconds(row[4]), Epoch: integer(row[6]),
		}
		if row[5] != nil {
			one.Leading, one.Since = true, milliseconds(row[5])
		}
		seen = seen.And(Seen{integer(row[7]), integer(row[8]), integer(row[9])})
		all = append(all, one)
	}
	r.seen.Store(&seen) // one goroutine of the replica looks
	return all, nil
}

// EndSilent ends the connection of a leader that has been silent for a lease, and reports whether it has. The leader's
// process may be frozen, or cut off from the server. A connection whose statement runs is not silent: the statement may
// wait for a disk or for a standby. The statement looks for the lock and for the silence of one process of the server at
// one time, so that it cannot end another that has its number.
func (r *Roster) EndSilent(ctx context.Context) (bool, error) {
	rows, err := r.run(ctx, fmt.Sprintf(`
		SELECT pg_terminate_backend(a.pid)
		FROM pg_locks l
		JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.granted AND `+holds+`
			AND (a.state <> 'active' OR a.wait_event_type = 'Client')
			AND clock_timestamp() - a.state_change > make_interval(secs => %d)`, writerLock, int(Lease.Seconds())))
	return len(rows) > 0, err
}

// run runs a statement whose arguments and results are texts. It connects if there is no connection.
func (r *Roster) run(ctx context.Context, query string, args ...[]byte) ([][][]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pg == nil || r.pg.IsClosed() {
		if err := r.connect(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	result := r.pg.ExecParams(ctx, query, args, nil, nil, nil).Read()
	var refused *pgconn.PgError
	if errors.As(result.Err, &refused) && refused.Code == "25006" { // a standby: another connection may find the primary
		_ = r.pg.Close(ctx) // nothing can be lost
	}
	return result.Rows, classify(result.Err, r.pg.IsClosed())
}

// connect connects to the server. The list waits for no standby: a replica that stays in it, or is not in it, does no
// harm.
func (r *Roster) connect(ctx context.Context) error {
	pg, err := pgconn.ConnectConfig(ctx, r.db.config) // connectTime for each host
	if err != nil {
		return classify(err, true)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	if _, err := pg.Exec(ctx, settings+`SET synchronous_commit = local`).ReadAll(); err != nil {
		err = classify(err, pg.IsClosed())
		return errors.Join(err, pg.Close(ctx))
	}
	r.pg = pg
	return nil
}

// Close closes the connection.
func (r *Roster) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pg == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	return r.pg.Close(ctx)
}

func hexOf(b []byte) []byte { return hex.AppendEncode(nil, b) }

func unhex(text []byte) []byte {
	b, _ := hex.AppendDecode(nil, text) // the server has encoded it
	return b
}

func milliseconds(text []byte) time.Duration { return time.Duration(integer(text)) * time.Millisecond }

func integer(text []byte) int64 {
	n, _ := strconv.ParseInt(string(text), 10, 64) // a bigint
	return n
}
