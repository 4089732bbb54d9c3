package votes

import "brokerd/internal/store"

// Migrations returns the steps that create the tables of votes.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "votes/001_votes", SQL: `
CREATE TABLE votes (
	id             INTEGER PRIMARY KEY, -- a number of the counter
	session        INTEGER NOT NULL,
	title          TEXT NOT NULL,
	description    TEXT,
	opener         TEXT NOT NULL,
	rule           INTEGER NOT NULL,
	quorum_ballots INTEGER NOT NULL, -- 0 = quorum_share
	quorum_share   REAL NOT NULL,
	task           TEXT,
	opened_at      INTEGER NOT NULL,
	deadline       INTEGER NOT NULL,
	electors       INTEGER NOT NULL, -- that remain, or have left with a ballot
	ballots        INTEGER NOT NULL,
	outcome        INTEGER NOT NULL, -- 0 = open
	winner         TEXT,
	ending         INTEGER NOT NULL, -- why it closed; 0 = open
	closed_by      TEXT, -- agent or system; NULL = the broker
	close_reason   TEXT,
	closed_at      INTEGER, -- NULL = open
	revision       INTEGER NOT NULL -- of its last change
);
CREATE INDEX votes_session ON votes (session, id);
CREATE INDEX votes_closed ON votes (session, closed_at, id);
CREATE INDEX votes_deadline ON votes (deadline) WHERE closed_at IS NULL;
CREATE INDEX votes_task ON votes (session, task, id) WHERE task IS NOT NULL;

CREATE TABLE vote_options (
	vote     INTEGER NOT NULL,
	position INTEGER NOT NULL, -- from 0
	option   TEXT NOT NULL,
	ballots  INTEGER NOT NULL,
	PRIMARY KEY (vote, position)
) WITHOUT ROWID;

CREATE TABLE vote_electors (
	vote     INTEGER NOT NULL,
	agent    TEXT NOT NULL,
	position INTEGER, -- of its option; NULL = it has not voted
	reason   TEXT,
	cast_at  INTEGER,
	changes  INTEGER NOT NULL,
	departed INTEGER NOT NULL, -- 1 = it has deregistered
	PRIMARY KEY (vote, agent)
) WITHOUT ROWID;
`}}
}

const voteColumns = `
	v.id, v.session, v.title, v.opener, v.rule, v.quorum_ballots, v.quorum_share, v.task, v.opened_at, v.deadline,
	v.electors, v.ballots, v.outcome, v.winner, v.ending, v.closed_by, v.close_reason, v.closed_at, v.revision`

const (
	insertVote = `
		INSERT INTO votes (id, session, title, description, opener, rule, quorum_ballots, quorum_share, task,
			opened_at, deadline, electors, ballots, outcome, ending, revision)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?)`
	insertOption = `
		INSERT INTO vote_options (vote, position, option, ballots) VALUES (?, ?, ?, 0)`
	insertElector = `
		INSERT INTO vote_electors (vote, agent, changes, departed) VALUES (?, ?, 0, 0)`

	selectVote = `
		SELECT ` + voteColumns + `, v.description FROM votes v WHERE v.id = ? AND v.session = ?`
	selectEdge = `
		SELECT id FROM votes WHERE session = ? AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?`
	selectVotes = `
		SELECT ` + voteColumns + `, NULL FROM votes v
		WHERE v.session = ? AND v.id < ? AND v.id >= ?
			AND (? <> 1 OR v.closed_at IS NULL) AND (? <> 2 OR v.closed_at IS NOT NULL)
			AND (? = '' OR v.opener = ?) AND (? = '' OR v.task = ?)
			AND (? = '' OR EXISTS (SELECT 1 FROM vote_electors e WHERE e.vote = v.id AND e.agent = ?))
		ORDER BY v.id DESC LIMIT ?`
	selectOfTask = `
		SELECT ` + voteColumns + `, NULL FROM votes v WHERE v.session = ? AND v.task = ? ORDER BY v.id DESC LIMIT ?`
	selectOpen = `
		SELECT ` + voteColumns + `, NULL FROM votes v
		WHERE v.session = ? AND v.closed_at IS NULL AND v.id > ? ORDER BY v.id LIMIT ?`
	selectAny = `
		SELECT ` + voteColumns + `, NULL FROM votes v WHERE v.id = ?`
	selectOldestOpen = `
		SELECT ` + voteColumns + `, NULL FROM votes v
		WHERE v.session = ? AND v.closed_at IS NULL ORDER BY v.id LIMIT ?`
	// announced leaves out votes whose end the backlog still announces.
	announced = `
			AND NOT EXISTS (SELECT 1 FROM work_backlog c WHERE c.feature = 'votes' AND c.item = v.id AND c.kind = 'announce')`
	selectFinished = `
		SELECT ` + voteColumns + `, v.description FROM votes v
		WHERE v.session = ? AND v.closed_at <= ?` + announced + `
		ORDER BY v.closed_at, v.id LIMIT ?`
	countFinished = `
		SELECT count(*) FROM votes v WHERE v.session = ? AND v.closed_at <= ?` + announced
	selectRecords = `
		SELECT ` + voteColumns + `, v.description FROM votes v WHERE v.session = ? AND v.id > ? ORDER BY v.id LIMIT ?`
	selectDeadlines = `
		SELECT id, deadline FROM votes WHERE closed_at IS NULL AND deadline > 0 ORDER BY deadline LIMIT ?`
	countOpen = `
		SELECT count(*) FROM votes WHERE session = ? AND closed_at IS NULL`

	selectOptions = `
		SELECT option, ballots FROM vote_options WHERE vote = ? ORDER BY position`
	selectBallots = `
		SELECT e.agent, o.option, e.reason, e.cast_at, e.changes, e.departed
		FROM vote_electors e LEFT JOIN vote_options o ON o.vote = e.vote AND o.position = e.position
		WHERE e.vote = ? ORDER BY e.agent`
	selectBallot = `
		SELECT e.agent, o.option, e.reason, e.cast_at, e.changes, e.departed
		FROM vote_electors e LEFT JOIN vote_options o ON o.vote = e.vote AND o.position = e.position
		WHERE e.vote = ? AND e.agent = ?`
	selectLeaving = `
		SELECT ` + voteColumns + `, NULL FROM votes v JOIN vote_electors e ON e.vote = v.id AND e.agent = ?
		WHERE v.session = ? AND v.closed_at IS NULL AND e.departed = 2 ORDER BY v.id LIMIT ?`
	selectAudience = `
		SELECT agent FROM vote_electors WHERE vote = ? AND agent > ? AND departed = 0 ORDER BY agent LIMIT ?`
	selectOwed = `
		SELECT ` + voteColumns + `, NULL FROM votes v JOIN vote_electors e ON e.vote = v.id AND e.agent = ?
		WHERE v.session = ? AND v.closed_at IS NULL AND e.departed = 0 AND e.position IS NULL ORDER BY v.id LIMIT ?`
	selectOpened = `
		SELECT ` + voteColumns + `, NULL FROM votes v
		WHERE v.session = ? AND v.closed_at IS NULL AND v.opener = ? ORDER BY v.id LIMIT ?`

	updateBallot = `
		UPDATE vote_electors SET position = ?, reason = ?, cast_at = ?, changes = ? WHERE vote = ? AND agent = ?`
	markLeaving = `
		UPDATE vote_electors SET departed = 2
		WHERE agent = ? AND departed = 0 AND vote IN (SELECT v.id FROM votes v WHERE v.session = ? AND v.closed_at IS NULL)`
	updateDeparted = `
		UPDATE vote_electors SET departed = 1 WHERE vote = ? AND agent = ?`
	updateOption = `
		UPDATE vote_options SET ballots = ballots + ? WHERE vote = ? AND position = ?`
	updateCounts = `
		UPDATE votes SET electors = ?, ballots = ?, revision = ? WHERE id = ?`
	updateClosed = `
		UPDATE votes SET outcome = ?, winner = ?, ending = ?, closed_by = ?, close_reason = ?, closed_at = ?, revision = ?
		WHERE id = ?`

	deleteElectors = `
		DELETE FROM vote_electors WHERE vote = ?`
	deleteOptions = `
		DELETE FROM vote_options WHERE vote = ?`
	deleteVote = `
		DELETE FROM votes AS v WHERE v.id = ? AND v.session = ? AND v.closed_at IS NOT NULL` + announced
	selectIDs = `
		SELECT id FROM votes WHERE session = ? ORDER BY id LIMIT ?`
	deleteAnyVote = `
		DELETE FROM votes WHERE id = ?`
)
