// Package gauges reads the core's tables for operators, metrics and the other features. It changes no row.
//
//	Checks            the invariants of the tables, for admin check
//	SleepingMailboxes the mailboxes in which a ready delivery and a consumer wait for each other, for admin check
//	Totals            the numbers of messages and deliveries, for admin check and backups
//	Mail              the deliveries by kind of mailbox, and the dead letters, for the metrics
//	OldestReady       the oldest message in each mailbox that a claim could take, for overviews
//	Claimants         the agents that hold claims, for the registry of agents
//	Holders           the claims of each agent, for a drain
//	OfTask            the messages that carry the id of a task, for the task's references
//	ArtifactMentions  the names of artifacts that messages have, for the removal of artifacts
//
// # Cost
//
// A snapshot that stays open keeps the log of the database from shrinking, so a reader must be quick whatever waits.
// Mail and OldestReady take one look-up for each mailbox, and examine at most 1,000 deliveries in it. Claimants and
// Holders read the index of claimed deliveries, of which there are as many as agents work on. Mail counts up to MostDead
// dead letters. SleepingMailboxes examines the first 1,000 ready deliveries for each consumer with capacity. Checks and
// Totals alone read whole tables: they run when an operator asks for them, or for a backup.
//
// # What it relies on
//
// The package schema has the tables, and mail says what may be in them: the kinds of mailboxes and the states of
// deliveries. The numbers of states and kinds in the statements are those of mail.State and mail.MailboxKind. Package
// app connects each function with the feature that needs it; that feature declares what it needs by itself and does
// not know this package.
//
// Reads that several packages share, such as Mailboxes.Counts and CaseOldestReady, are in package mail.
package gauges
