package app_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jonboulle/clockwork"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
)

// unportable are the statements that PostgreSQL cannot prepare, by package and constant, with the reason. The list may
// only shrink.
var unportable = map[string]string{
	"store.checkBefore": "SQLite's list of tables",
	"store.made":        "SQLite's list of tables",
	"store.keepLog":     "SQLite's list of tables",
	"store.tables":      "SQLite's list of tables",
}

// TestQueries_PostgreSQLPreparesEveryStatement prepares every statement in the source of every package on PostgreSQL,
// with the tables of a new database. It finds them as constant strings, so that new ones are covered.
func TestQueries_PostgreSQLPreparesEveryStatement(t *testing.T) {
	t.Parallel()
	db := postgresTables(t)
	dirs, err := filepath.Glob("../*")
	apptest.NoError(t, err)
	total, used, exported := 0, map[string]bool{}, exportedParts(t)
	for _, dir := range dirs {
		for _, q := range readSource(t, dir, exported).statements {
			total++
			_, err := prepare(t.Context(), db.PgConn(), "", q.text)
			if err == nil {
				continue
			}
			used[q.name] = true
			if unportable[q.name] == "" {
				t.Errorf("%s: %v", q.name, err)
			}
		}
	}
	for name := range unportable {
		if !used[name] {
			t.Errorf("%s is named but PostgreSQL prepares it", name)
		}
	}
	if total < 300 {
		t.Errorf("only %d statements were found", total)
	}
}

// undetermined is PostgreSQL's error for an argument whose uses do not show one type. A program states the type of
// each argument; the test, which has no values, states that a list is a text, and that any other such argument is an
// integer.
var undetermined = regexp.MustCompile(
	`^(?:could not determine data type of|inconsistent types deduced for) parameter \$(\d+)$`)

// prepare prepares a statement under a name, and returns the types of its arguments. It refuses one that takes an
// argument for a truth value: the engine has integers alone.
func prepare(ctx context.Context, db *pgconn.PgConn, name, query string) ([]uint32, error) {
	text, _ := postgres.Translate(query)
	var types []uint32
	for {
		prepared, err := db.Prepare(ctx, name, text, types)
		var refused *pgconn.PgError
		switch {
		case err == nil && slices.Contains(prepared.ParamOIDs, pgtype.BoolOID):
			return nil, errors.New("an argument is a truth value: compare it with 0")
		case err == nil:
			return prepared.ParamOIDs, nil
		case !errors.As(err, &refused):
			return nil, err
		}
		m := undetermined.FindStringSubmatch(refused.Message)
		if m == nil {
			return nil, err
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, err
		}
		types = append(types, make([]uint32, max(n-len(types), 0))...)
		if types[n-1] != 0 {
			return nil, refused
		}
		if types[n-1] = pgtype.Int8OID; strings.Contains(text, fmt.Sprintf("CAST($%d AS json)", n)) {
			types[n-1] = pgtype.TextOID
		}
	}
}

// postgresTables makes the tables of every feature in a new database, as a broker does, and connects to it.
func postgresTables(t *testing.T) *pgx.Conn {
	t.Helper()
	url := postgrestest.Database(t)
	database, err := postgres.New(url, "", clockwork.NewRealClock())
	apptest.NoError(t, err)
	s, err := store.Open(t.Context(), store.Options{
		Dir: t.TempDir(), Clock: clockwork.NewRealClock(), Database: database, Migrations: app.Migrations(),
	})
	apptest.NoError(t, err)
	apptest.NoError(t, s.Close())
	db, err := pgx.Connect(t.Context(), url)
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}

// TestQueries_IndexesOnPostgreSQLEndWithTheKey finds every index without the key of its table: a page in the order of
// the key would sort all rows that such an index finds.
func TestQueries_IndexesOnPostgreSQLEndWithTheKey(t *testing.T) {
	t.Parallel()
	rows, err := postgresTables(t).Query(t.Context(), `
		SELECT i.indexrelid::regclass::text, i.indkey::int2[] @> k.indkey::int2[]
		FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_index k ON k.indrelid = i.indrelid AND k.indisprimary
		WHERE c.relnamespace = current_schema()::regnamespace AND NOT i.indisunique`)
	apptest.NoError(t, err)
	var name string
	var complete bool
	tag, err := pgx.ForEachRow(rows, []any{&name, &complete}, func() error {
		if !complete {
			t.Errorf("the index %s does not have the key", name)
		}
		return nil
	})
	if err != nil || tag.RowsAffected() < 50 {
		t.Errorf("only %d indexes were found: %v", tag.RowsAffected(), err)
	}
}

// sequential are the statements whose plan on PostgreSQL reads a whole table or index that can grow, and which SQLite
// runs otherwise, by package and constant, with the reason. What is in scans may do so here as well.
var sequential = map[string]string{
	"auth.selectSurplus":     "its LIMIT ends it",
	"broker.selectNextTimes": "the first entry of each index alone",
	"offers.selectNextDue":   "the first entry of the index alone",
	"offers.selectOffersDue": "open offers alone, which are as many as agents decide on",
	"state.nextExpiry":       "its LIMIT ends it",
	"tasks.selectDue":        "its LIMIT ends it",
}

// TestQueries_PostgreSQLReadsNoGrowingTableUnnamed has PostgreSQL explain every statement, and those into which the
// writer gathers them, as the connections of readers and of the writer plan them.
func TestQueries_PostgreSQLReadsNoGrowingTableUnnamed(t *testing.T) {
	t.Parallel()
	db := postgresTables(t)
	fill(t, db)
	_, err := db.Exec(t.Context(), `
		SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
		SET max_parallel_workers_per_gather = 0; SET plan_cache_mode = force_generic_plan`)
	apptest.NoError(t, err)
	dirs, err := filepath.Glob("../*")
	apptest.NoError(t, err)
	used, exported := map[string]bool{}, exportedParts(t)
	explain := func(name string, parameters int) {
		t.Helper()
		text := `EXPLAIN EXECUTE statement`
		if parameters > 0 {
			text += `(NULL` + strings.Repeat(`, NULL`, parameters-1) + `)`
		}
		for _, bitmaps := range []string{"on", "off"} { // of readers, and of the writer
			results, err := db.PgConn().Exec(t.Context(),
				`DISCARD PLANS; SET enable_bitmapscan = `+bitmaps+`; `+text).ReadAll()
			apptest.NoError(t, err)
			var plan strings.Builder
			for _, row := range results[2].Rows {
				plan.Write(append(row[0], '\n'))
			}
			if whole := readsAll(plan.String()); whole != "" && scans[name] == "" {
				used[name] = true
				if sequential[name] == "" {
					t.Errorf("%s, with bitmaps %s: %s\n%s", name, bitmaps, whole, plan.String())
				}
			}
		}
		_, err := db.Exec(t.Context(), `DEALLOCATE statement`)
		apptest.NoError(t, err)
	}
	gathered := 0
	for _, dir := range dirs {
		for _, q := range readSource(t, dir, exported).statements {
			types, err := prepare(t.Context(), db.PgConn(), "statement", q.text)
			if err != nil {
				continue // the test above reports it
			}
			explain(q.name, len(types))
			text, _ := postgres.Translate(q.text)
			_, text, arrays := postgres.Gather(text, types)
			if text == "" {
				continue
			}
			gathered++
			_, err = db.PgConn().Prepare(t.Context(), "statement", text, arrays)
			apptest.NoError(t, err)
			explain(q.name, len(arrays))
		}
	}
	for name := range sequential {
		if !used[name] {
			t.Errorf("%s is named but reads no whole table", name)
		}
	}
	if gathered < 50 {
		t.Errorf("only %d statements are gathered", gathered)
	}
}

// fill gives every table 20,000 rows: for an empty one, a plan that reads all of it is as cheap as any other. Columns
// of unique indexes count up, the others have a hundred values, of which NULL may be one.
func fill(t *testing.T, db *pgx.Conn) {
	t.Helper()
	_, err := db.Exec(t.Context(), `
		DO $$
		DECLARE filled regclass; checked text; names text; expressions text;
		BEGIN
			FOR filled IN SELECT oid FROM pg_class
				WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace AND relname <> 'meta'
			LOOP
				FOR checked IN SELECT conname FROM pg_constraint WHERE conrelid = filled AND contype = 'c' LOOP
					EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', filled, checked);
				END LOOP;
				SELECT string_agg(quote_ident(attname), ', '), string_agg(CASE
					WHEN atttypid = 'timestamptz'::regtype THEN 'now()'
					WHEN EXISTS (SELECT FROM pg_index
						WHERE indrelid = filled AND indisunique AND attnum = ANY (indkey)) THEN 'i::text::' || atttypid::regtype
					WHEN attnotnull THEN '(i % 100)::text::' || atttypid::regtype
					ELSE 'nullif(i % 100, 0)::text::' || atttypid::regtype END, ', ')
				INTO names, expressions
				FROM pg_attribute
				WHERE attrelid = filled AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
				EXECUTE format('INSERT INTO %s (%s) SELECT %s FROM generate_series(1, 20000) AS i ON CONFLICT DO NOTHING',
					filled, names, expressions);
			END LOOP;
		END $$;
		ANALYZE`)
	apptest.NoError(t, err)
}

// node is a step of PostgreSQL's plan that reads a table.
var node = regexp.MustCompile(`(?m)^ *(?:-> +)?(Seq Scan|Index (?:Only )?Scan(?: Backward)?)( using \S+)? on (\S+).*\n( *Index Cond)?`)

// readsAll returns the first step of a plan that reads a whole table or index, other than the one row about the
// database; "" if there is none.
func readsAll(plan string) string {
	for _, m := range node.FindAllStringSubmatch(plan, -1) {
		if m[4] == "" && m[3] != "meta" {
			return m[1] + m[2] + " on " + m[3]
		}
	}
	return ""
}

// The PostgreSQL store inserts the rows of a batch table by table, in another order than their statements have.
func TestSchema_HasNoForeignKeys(t *testing.T) {
	t.Parallel()
	var n int
	err := postgresTables(t).QueryRow(t.Context(), `SELECT count(*) FROM pg_constraint WHERE contype = 'f'`).Scan(&n)
	if err != nil || n > 0 {
		t.Errorf("there are %d foreign keys: gather must keep the order of their tables (%v)", n, err)
	}
}
