package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Dial opens a connection for work beside the store.
func (d *Database) Dial(ctx context.Context) (*pgconn.PgConn, error) {
	pg, err := pgconn.ConnectConfig(ctx, d.config)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", d.Name(), withCause(classify(err, true)))
	}
	return pg, nil
}

const (
	// unsound are constraints that the server does not keep for all rows, and indexes that it does not keep.
	unsound = `
SELECT 'constraint ' || conname || ' of ' || conrelid::regclass || ' is not validated' FROM pg_constraint
WHERE connamespace = current_schema()::regnamespace AND NOT convalidated
UNION ALL
SELECT 'index ' || indexrelid::regclass || ' is not valid' FROM pg_index JOIN pg_class c ON c.oid = indexrelid
WHERE c.relnamespace = current_schema()::regnamespace AND NOT indisvalid`

	// checkable says whether the extension amcheck is there for this user.
	checkable = `
SELECT 1 FROM pg_proc WHERE proname = 'bt_index_check' AND pronargs = 2 AND has_function_privilege(oid, 'EXECUTE')`

	// checkIndexes fails where an index does not fit its table.
	checkIndexes = `
SELECT bt_index_check(indexrelid, true) FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = c.relam
WHERE c.relnamespace = current_schema()::regnamespace AND amname = 'btree'`
)

// Check implements store.Database. It reads the tables only if the database has the extension amcheck.
func (d *Database) Check(ctx context.Context) (problems []string, err error) {
	pg, err := d.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = pg.Close(ctx) }() // it has only read
	results, err := pg.Exec(ctx, unsound+`;`+checkable).ReadAll()
	if err != nil {
		return nil, classify(err, pg.IsClosed())
	}
	for _, row := range results[0].Rows {
		problems = append(problems, string(row[0]))
	}
	if len(results[1].Rows) > 0 {
		_, err = pg.Exec(ctx, checkIndexes).ReadAll()
	}
	if damage := damageOf(err); damage != "" {
		return append(problems, damage), nil
	}
	return problems, classify(err, pg.IsClosed())
}
