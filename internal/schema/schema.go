// Package schema has the tables of messages. The core (package broker) and the packages around it share them, and their
// migrations run in one order, so they are in one place. The names begin with broker/ because released databases have
// recorded them so.
package schema

import "brokerd/internal/store"

// Migrations returns the tables of messages, oldest first.
func Migrations() []store.Migration {
	return []store.Migration{
		{Name: "broker/001_messages", SQL: messages},
		{Name: "broker/002_conversations", SQL: conversations},
		{Name: "broker/003_gates", SQL: gates},
		{Name: "broker/004_retention", SQL: `ALTER TABLE channels ADD COLUMN retention INTEGER; -- NULL = as the session has it`},
		{Name: "broker/005_late_questions", SQL: lateQuestions},
		{Name: "broker/006_opened_at", SQL: `ALTER TABLE breakers ADD COLUMN opened_at INTEGER; -- NULL = it is closed`},
		{Name: "broker/007_notices", SQL: notices},
		{Name: "broker/008_artifacts", SQL: messageArtifacts},
		{Name: "broker/009_leftovers", SQL: leftovers},
		{Name: "broker/010_offers", SQL: offers},
		{Name: "broker/011_attention", SQL: repliesIndex},
		{Name: "broker/012_sent_events", SQL: sentEvents},
		{Name: "broker/013_blocked", SQL: blockedIndex},
	}
}

// The ids of mailboxes and producers are never reused (AUTOINCREMENT), because messages and streams
// refer to them for longer than their rows exist.
//
// Indexes are partial: they hold only what is still alive, so that a finished message costs nothing but its rows.
//
// A mailbox of kind agent also stands for the agent itself in holder and in subscriptions.
//
// arrival is positive while an unfinished delivery is visible in an agent's mailbox, which is what Receive
// reads; otherwise it is negated, or NULL before it first became visible.
//
// A row of departures is the mailbox of an agent that has deregistered while not all of its mail is
// a dead letter yet; dead is the number of those that are. A row of reranks is a session whose
// ageing has changed while not all ranks follow it yet; version counts the changes. The package
// deadletters works on departures, and backlog on reranks.
const messages = `
CREATE TABLE mailboxes (
	id      INTEGER PRIMARY KEY AUTOINCREMENT,
	session INTEGER NOT NULL,
	kind    INTEGER NOT NULL,
	name    TEXT    NOT NULL,
	waiting INTEGER NOT NULL DEFAULT 0,
	UNIQUE (session, kind, name)
);

CREATE TABLE messages (
	revision     INTEGER PRIMARY KEY,
	id           BLOB    NOT NULL,
	session      INTEGER NOT NULL,
	sender       TEXT    NOT NULL,
	sender_role  TEXT    NOT NULL,
	created_at   INTEGER NOT NULL,
	expires_at   INTEGER,
	type         TEXT    NOT NULL,
	priority     INTEGER NOT NULL,
	channel      TEXT,
	thread       TEXT,
	correlation  TEXT,
	task         TEXT,
	producer     INTEGER,
	number       INTEGER,
	content      BLOB    NOT NULL
);
CREATE INDEX messages_thread      ON messages (thread)      WHERE thread IS NOT NULL;
CREATE INDEX messages_correlation ON messages (correlation) WHERE correlation IS NOT NULL;
CREATE INDEX messages_task        ON messages (task)        WHERE task IS NOT NULL;

CREATE TABLE deliveries (
	message      INTEGER NOT NULL,
	mailbox      INTEGER NOT NULL,
	state        INTEGER NOT NULL,
	rank         INTEGER NOT NULL,
	arrival      INTEGER,
	claims       INTEGER NOT NULL DEFAULT 0,
	attempts     INTEGER NOT NULL DEFAULT 0,
	max_attempts INTEGER NOT NULL,
	holder       INTEGER,
	consumer     TEXT,
	claimed_at   INTEGER,
	claim_for    INTEGER,
	delivered_at INTEGER,
	read_at      INTEGER,
	finished_at  INTEGER,
	due_at       INTEGER,
	expires_at   INTEGER,
	ordering_key TEXT,
	PRIMARY KEY (message, mailbox)
) WITHOUT ROWID;
CREATE INDEX deliveries_ready    ON deliveries (mailbox, rank, message)         WHERE state = 1;
CREATE INDEX deliveries_claimed  ON deliveries (holder, message)                WHERE state = 2;
CREATE INDEX deliveries_arrival  ON deliveries (mailbox, arrival)               WHERE arrival > 0;
CREATE INDEX deliveries_delayed  ON deliveries (mailbox, due_at)                WHERE state = 3;
CREATE INDEX deliveries_due      ON deliveries (due_at)                         WHERE state = 3;
CREATE INDEX deliveries_expiring ON deliveries (expires_at)                     WHERE expires_at IS NOT NULL AND state IN (1, 3, 4);
CREATE INDEX deliveries_ordered  ON deliveries (mailbox, ordering_key, message) WHERE ordering_key IS NOT NULL AND state <= 4;
CREATE INDEX deliveries_dead     ON deliveries (mailbox, message)               WHERE state = 6;

CREATE TABLE attempts (
	message    INTEGER NOT NULL,
	mailbox    INTEGER NOT NULL,
	claim      INTEGER NOT NULL,
	number     INTEGER NOT NULL,
	holder     INTEGER NOT NULL,
	consumer   TEXT    NOT NULL,
	claimed_at INTEGER NOT NULL,
	ended_at   INTEGER NOT NULL,
	error      TEXT    NOT NULL,
	PRIMARY KEY (message, mailbox, claim)
) WITHOUT ROWID;

CREATE TABLE producers (
	id      INTEGER PRIMARY KEY AUTOINCREMENT,
	session INTEGER NOT NULL,
	sender  TEXT    NOT NULL,
	name    TEXT    NOT NULL,
	number  INTEGER NOT NULL,
	last    INTEGER NOT NULL,
	used_at INTEGER NOT NULL, -- uptime of the broker
	UNIQUE (session, sender, name)
);

CREATE TABLE channels (
	mailbox     INTEGER PRIMARY KEY,
	default_ttl INTEGER
);

CREATE TABLE subscriptions (
	channel INTEGER NOT NULL,
	agent   INTEGER NOT NULL,
	PRIMARY KEY (channel, agent)
) WITHOUT ROWID;
CREATE INDEX subscriptions_agent ON subscriptions (agent);

CREATE TABLE departures (
	mailbox INTEGER PRIMARY KEY,
	role    TEXT    NOT NULL,
	reason  TEXT    NOT NULL,
	dead    INTEGER NOT NULL
);

CREATE TABLE reranks (
	session INTEGER PRIMARY KEY,
	version INTEGER NOT NULL
);
`

// leftovers has the messages that the archive has removed while not all of their details are removed.
const leftovers = `
CREATE TABLE leftovers (
	first INTEGER PRIMARY KEY, -- revisions of messages that are removed, from this one
	last  INTEGER NOT NULL     -- to this one
);
`

// A row of offers is an attempt to put a delivery in an agent's mailbox before a model. It is open until due_at,
// and settled if due_at is NULL: accepted or returned. One that was returned can still be accepted.
const offers = `
CREATE TABLE offers (
	message     INTEGER NOT NULL,
	mailbox     INTEGER NOT NULL,
	number      INTEGER NOT NULL,
	way         INTEGER NOT NULL,
	harness     TEXT    NOT NULL,
	mark        TEXT    NOT NULL,
	offered_at  INTEGER NOT NULL,
	due_at      INTEGER,
	accepted_at INTEGER,
	returned_at INTEGER,
	why         TEXT    NOT NULL DEFAULT '',
	PRIMARY KEY (message, mailbox, number)
) WITHOUT ROWID;
CREATE INDEX offers_due     ON offers (due_at)                    WHERE due_at IS NOT NULL;
CREATE INDEX offers_open    ON offers (mailbox, message)          WHERE due_at IS NOT NULL;
CREATE INDEX offers_harness ON offers (mailbox, harness, message) WHERE accepted_at IS NULL;
CREATE INDEX offers_mark    ON offers (mailbox, mark);
`

// Whether a message answers a question of the agent.
const repliesIndex = `
CREATE INDEX questions_reply ON questions (reply) WHERE reply IS NOT NULL;
`

// A question is a message that requires a response. It is open until one of these settles it: the first reply, whose
// revision is then in reply, the end of its thread, or its withdrawal. overdue is the revision of the event that
// reported the missed deadline; 0 if none was needed. fetched is set once a repeated Ask has returned the reply.
//
// A row of resends is a delivery in an agent's mailbox that arrives again when it is due, unless an agent has noticed it
// by then.
const conversations = `
CREATE TABLE questions (
	message  INTEGER PRIMARY KEY,
	session  INTEGER NOT NULL,
	sender   TEXT    NOT NULL,
	thread   TEXT    NOT NULL,
	deadline INTEGER NOT NULL,
	overdue  INTEGER,
	settled  INTEGER,
	reply    INTEGER,
	fetched  INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX questions_due    ON questions (deadline)                 WHERE settled IS NULL AND overdue IS NULL;
CREATE INDEX questions_asked  ON questions (session, sender, message) WHERE settled IS NULL;
CREATE INDEX questions_thread ON questions (session, thread, message) WHERE settled IS NULL;

CREATE TABLE resends (
	message INTEGER NOT NULL,
	mailbox INTEGER NOT NULL,
	after   INTEGER NOT NULL,
	due_at  INTEGER NOT NULL,
	times   INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (message, mailbox)
) WITHOUT ROWID;
CREATE INDEX resends_due ON resends (due_at);

CREATE TABLE threads (
	session     INTEGER NOT NULL,
	thread      TEXT    NOT NULL,
	outcome     TEXT    NOT NULL,
	resolved_by TEXT    NOT NULL,
	resolved_at INTEGER NOT NULL,
	PRIMARY KEY (session, thread)
) WITHOUT ROWID;
`

// A question whose deadline has passed is in this index once the broker has reported it: see package conversations.
const lateQuestions = `
CREATE INDEX questions_late ON questions (session, deadline) WHERE settled IS NULL AND overdue IS NOT NULL;
`

// The artifacts that a message names, as its sender wrote them.
const messageArtifacts = `
CREATE TABLE message_artifacts (
	session  INTEGER NOT NULL,
	artifact TEXT    NOT NULL,
	message  INTEGER NOT NULL,
	PRIMARY KEY (session, artifact, message)
) WITHOUT ROWID;
CREATE INDEX message_artifacts_message ON message_artifacts (message);
`

// What may be given to an agent. An agent is known by its mailbox. An agent without a halt or failures has no row.
//
// A breaker with a time is open. The probe is the claim that decides about it, after that time.
const gates = `
CREATE TABLE halts (
	agent     INTEGER PRIMARY KEY,
	message   INTEGER NOT NULL,
	halted_at INTEGER NOT NULL
);

CREATE TABLE breakers (
	agent         INTEGER PRIMARY KEY,
	failures      INTEGER NOT NULL,
	open_until    INTEGER,
	probe_message INTEGER,
	probe_mailbox INTEGER
);
`

// about is the revision of the grant or question that a notice is about, 0 = none. An unread notice is a
// delivery in state 9. That state also expires, so deliveries_expiring covers it.
const notices = `
ALTER TABLE messages ADD COLUMN about INTEGER;
CREATE INDEX messages_about ON messages (about) WHERE about IS NOT NULL;
CREATE INDEX deliveries_notices ON deliveries (mailbox, message) WHERE state = 9;
DROP INDEX deliveries_expiring;
CREATE INDEX deliveries_expiring ON deliveries (expires_at) WHERE expires_at IS NOT NULL AND state IN (1, 3, 4, 9);
`

const blockedIndex = `
CREATE INDEX deliveries_blocked ON deliveries (mailbox, message) WHERE state = 4;
`

// The row of a message is also the event message.sent. recipients and refused count mailboxes, related is the revision
// of the message that it answers, and flags are those of package events. The event of a message without recipients,
// which an older version has sent, is a row of events.
const sentEvents = `
ALTER TABLE messages ADD COLUMN recipients INTEGER;
ALTER TABLE messages ADD COLUMN refused INTEGER;
ALTER TABLE messages ADD COLUMN related INTEGER;
ALTER TABLE messages ADD COLUMN flags INTEGER;
`
