// Package importer moves a team from a SQLite file with the tables messages, channel_subscriptions,
// agent_status and dead_letter_queue to a running broker. It uses only the API of the broker.
//
//	FILE, FILE-wal ──copy──► temporary folder ──rows──► agents, subscriptions, messages, dead letters
//	                                          ──rows──► import/NAME/history.jsonl, skipped.jsonl
//
// # The file
//
// The importer never opens FILE with SQLite: a connection, even one that only reads, writes to the
// file FILE-shm. It copies FILE and FILE-wal as bytes and then compares the beginning of both with
// what they were before, so the copy is a state that was committed. The team can go on working
// meanwhile. SQLite opens the copy alone.
//
// # Once
//
// Every row has a key: a hash of what it says. The same row in a copy of FILE has the same key. The
// ledger is the namespace "import" of the session's state. Its entries are numbered, and each is about
// up to 500 rows: before their first call it says "sending" with the keys, and after their last call
// "sent" with the keys of the rows that the broker has.
//
//	not in the ledger ──► sending ──► sent: never sent again
//	                        └── the import ended here: the next one looks the row up first
//
// A message has "import:KEY" as its thread, so the next import finds it for as long as the broker
// keeps it (at least 72 h after its end). Its request id, of the key and the number of the entry,
// covers a call of the ended import that is still in progress. The broker creates each entry only if
// its number is free, so of two imports in one session at the same time one ends with an error.
//
// # Memory
//
// The importer holds one row at a time, and the numbers of 500. The order of the rows, the keys of
// the ledger and the artifacts are in files of the temporary folder.
package importer
