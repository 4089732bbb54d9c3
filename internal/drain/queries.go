package drain

import "brokerd/internal/store"

// Migrations returns the table of this package. It has a row while a drain is in force.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "drain/001_drains", SQL: `
CREATE TABLE drains (
	id       INTEGER PRIMARY KEY CHECK (id = 1),
	began_at INTEGER NOT NULL
);
`}}
}

const (
	selectDrain = `
		SELECT began_at FROM drains WHERE id = 1`
	insertDrain = `
		INSERT INTO drains (id, began_at) VALUES (1, ?)`
	deleteDrain = `
		DELETE FROM drains WHERE id = 1`
)
