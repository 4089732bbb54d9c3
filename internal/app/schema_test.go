package app_test

import (
	"database/sql"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

var update = flag.Bool("update", false, "write the schemas to testdata")

// postgresSchema writes a database as text: a line for each table, column, constraint, index and function.
const postgresSchema = `
SELECT string_agg(line, E'\n' ORDER BY relname COLLATE "C", part, line COLLATE "C") || E'\n' FROM (
	SELECT relname, 0 AS part, 'table ' || relname AS line FROM pg_class
	WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
	UNION ALL
	SELECT relname, 1, '  ' || attname || ' ' || format_type(atttypid, atttypmod)
		|| CASE WHEN attcollation NOT IN (0, 100) THEN ' COLLATE ' || attcollation::regcollation ELSE '' END
		|| CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END
		|| CASE attidentity WHEN '' THEN '' WHEN 'd' THEN ' IDENTITY BY DEFAULT' ELSE ' IDENTITY ALWAYS' END
		|| CASE WHEN attstorage <> typstorage THEN ' STORAGE ' || attstorage::text ELSE '' END
		|| coalesce(' DEFAULT ' || pg_get_expr(adbin, adrelid), '')
	FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
		JOIN pg_type ON pg_type.oid = atttypid LEFT JOIN pg_attrdef ON adrelid = pg_class.oid AND adnum = attnum
	WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
	UNION ALL
	SELECT relname, 2, '  ' || pg_get_constraintdef(pg_constraint.oid)
	FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid WHERE relnamespace = current_schema()::regnamespace
	UNION ALL
	SELECT tablename, 3, '  ' || replace(indexdef, ' ON ' || schemaname || '.', ' ON ') FROM pg_indexes
	WHERE schemaname = current_schema() AND NOT EXISTS (
		SELECT 1 FROM pg_constraint WHERE conname = indexname AND connamespace = current_schema()::regnamespace)
	UNION ALL
	SELECT '', 0, 'function ' || oid::regprocedure || ' ' || pg_get_function_result(oid) || ' ' || provolatile::text FROM pg_proc
	WHERE pronamespace = current_schema()::regnamespace
) AS lines`

// sqliteSchema writes a database as the statements that make it.
const sqliteSchema = `
SELECT group_concat(sql, ';' || char(10)) || ';' || char(10)
FROM (SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY tbl_name, type DESC, name)`

// A migration that makes other tables than the file has is a change that a reader of the file must see.
func TestSchema_IsThatOfTheFile(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it makes databases of both stores")
	for name, schema := range map[string]func(t *testing.T) string{
		"postgres": func(t *testing.T) string { return schemaOnPostgreSQL(t, emptyDatabase(t)) },
		"sqlite": func(t *testing.T) (text string) {
			b := apptest.Start(t, apptest.With(func(c *app.Config) { c.Store = "" }))
			db, err := sql.Open("sqlite3", "file:"+filepath.Join(b.Dir(), "brokerd.db")+"?mode=ro")
			apptest.NoError(t, err)
			defer func() { _ = db.Close() }()
			apptest.NoError(t, db.QueryRow(sqliteSchema).Scan(&text))
			return text
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join("testdata", "schema", name+".txt")
			got := schema(t)
			if *update {
				apptest.NoError(t, os.WriteFile(path, []byte(got), 0o600))
			}
			want, err := os.ReadFile(path)
			apptest.NoError(t, err)
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("the tables of %s differ (go test -run TestSchema ./internal/app -update): %s", name, diff)
			}
		})
	}
}
