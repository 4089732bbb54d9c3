// Package postgres keeps the tables of a store in a PostgreSQL database.
//
// A statement has one text, SQLite's: see Translate. The queue of a batch is sent at once, behind the words that
// begin the transaction or set a savepoint, and answered at once. The last queue of a batch is sent with its commit.
// So a batch costs one wait for each read, for the statements before it and for its end. A result is read whole
// before its first row is used, since the connection runs one statement at a time and a function may ask the next
// question between two rows.
//
// # One writer
//
// The writer's connection holds an advisory lock. Each broker that gets the lock raises the epoch in the row of meta,
// and each transaction fails whose broker has another epoch, or does not know the last commit: see fence. So a broker
// that has lost its lock without knowing it, because its connection was cut, commits nothing more once another one has
// begun.
//
// # A lost connection
//
// A transaction whose connection is lost before its commit is sent is not committed. If nothing of it had arrived
// before, it is sent again; else its batch fails, and the next one connects again. Where the answer to a commit is
// lost, the connection that gets the lock next looks in the row of meta, where each commit counts itself, and makes
// another commit, whose answer says that a synchronous standby has both. If there is no such connection within half a
// minute, or another broker was faster, the error is store.ErrUnknown, for which the broker ends.
package postgres
