// Package store is the engine: one SQLite file, one writer, a pool of readers. It knows no feature.
//
// # A change
//
// Write hands a function to the one writer goroutine. The writer gathers the functions that wait
// into one transaction, runs each of them and the rounds for which they have left notes, commits,
// syncs, runs the OnCommit functions and then answers every caller:
//
//	Drain  ──► LaneDrain ─┐
//	Write  ──► LaneFill ──┼► BEGIN ─ functions, rounds ─ endings ─ statements left ─ counter ─ COMMIT ─► OnCommit ─► answers
//	Kick   ──► endings ───┘
//
// Nothing is acknowledged, refused or woken before the commit is on disk. A function decides only
// on what it reads through its Tx. A batch ends after 4 ms or 1,000 changed rows, and after
// half of that while callers have sent far ahead; a function always runs whole, so it is kept small. A batch that has
// changed nothing costs no sync, and one of Tx.Patient functions alone waits a millisecond for others.
//
// # Statements
//
// A statement of Tx.Exec waits, and is sent before the next read of any function, or at the end of the batch. A
// function that is refused takes back what waits. What it has sent already, because it read after a change of its
// own, follows a savepoint and is rolled back: a refusal undoes only itself. A function that reads first and
// changes afterwards needs no savepoint.
//
// The statements that wait are run in one call of C, because calls of C through the driver would cost more than SQLite
// itself: see native.h for how it gets the arguments. Exec copies the arguments, except large ones, which C reads where
// they are. SQLite's objects come out of fields of the driver's. With a driver that names them otherwise, the driver
// runs the statements.
//
// # Rounds
//
// What many functions would write one by one, they can note instead, and a Round writes it once. A round of NewRound
// belongs to the functions whose notes it gets: it runs before any function that might read what it writes, and if it
// fails, they fail. The rows that it will change are charged to them, and bound the batch. An ending of NewEnding
// runs once at the end of a batch; if it fails, it alone is undone, and runs again later with the same notes. A
// function that is refused takes its notes back.
//
// # Callers
//
// Within a lane the writer serves the caller that has used the least of it (WithCaller). A caller
// that queues functions without limit delays only itself, and it can queue no more than 1,000
// functions or 4 MiB: Write, Drain and Submit block beyond that. The broker's own work counts as
// one caller.
//
// # Revisions
//
// The database has one counter. Tx.NextRevision gives its next number; the counter is stored with
// every transaction that changes something and never derived from the rows, so a number is never
// given twice, whatever is deleted or rolled back. Gaps are fine. The highest wall clock seen is
// stored with it.
//
// # Reading
//
// Read gives a function a snapshot: the database as one commit has left it, whatever is written
// meanwhile. A snapshot that stays in use keeps the write-ahead log from starting over, so read a
// page, return, and send it afterwards.
//
// # Failure
//
// Disk full or an I/O error may roll back the whole transaction and not just a savepoint: after
// every failed function the writer checks whether the transaction is still open. If not, every
// function of the batch fails as fault.Unavailable, and the writer runs none of them again. Reads
// continue; writing resumes by itself when there is free space.
//
// A statement that fails otherwise is a defect. Its function fails, whatever it returns (see Tx.Exec). If the
// function has ended before the statement was sent, the writer rolls the batch back and runs its functions once
// more, one by one, so that only the function with the defect fails.
//
// A failed sync is different: nobody knows what is on disk
// until the file is opened again, so the process must end (Options.Fatal).
//
// Damage is different again: after the first damage that a check or a statement finds, the store
// refuses all changes. Reads continue as far as possible. See CheckBehind and Damage.
//
// # Tables
//
// Every feature brings its Migrations. Times are INTEGER, Unix nanoseconds, and so are booleans (0
// or 1) and durations. Foreign keys are checked at once, never deferred: what only COMMIT can find
// out would fail the whole batch.
package store
