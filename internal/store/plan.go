package store

import "github.com/mattn/go-sqlite3"

// watchPlans calls planned whenever SQLite plans a part of a statement of the connection: SQLite asks for permission to
// read or change a table or column while it plans.
func (c *conn) watchPlans(planned func(object string)) {
	if planned == nil {
		return
	}
	c.sqlite.raw.RegisterAuthorizer(func(operation int, table, column, _ string) int {
		if operation != sqlite3.SQLITE_PRAGMA { // the engine's own, run as they are
			planned(table + "." + column)
		}
		return sqlite3.SQLITE_OK
	})
}
