package broker

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
