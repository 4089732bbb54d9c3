package locks

import (
	"strings"

	"brokerd/internal/store"
)

// A grant and a ticket are the same request in two states. text is what it wants: paths, each in a line, or TYPE/SCOPE. ticket of a grant
// is the ticket that it came from. collected is 0 as long as no call has returned the grant to its owner. warned and contested
// say that its owner was told that its end is near, and that others wait for it.
//
// A row of lock_paths is one path of a grant, or its token: name is empty where it is the place itself.
const requests = `
CREATE TABLE lock_grants (
	fence      INTEGER PRIMARY KEY,
	session    INTEGER NOT NULL,
	agent      TEXT    NOT NULL,
	holder     TEXT    NOT NULL,
	role       TEXT    NOT NULL,
	kind       INTEGER NOT NULL,
	mode       INTEGER NOT NULL,
	text       TEXT    NOT NULL,
	globs      INTEGER NOT NULL,
	broad      INTEGER NOT NULL,
	reason     TEXT    NOT NULL,
	granted_at INTEGER NOT NULL,
	held_until INTEGER NOT NULL,
	max_hold   INTEGER NOT NULL,
	ticket     INTEGER,
	kept       INTEGER NOT NULL,
	collected  INTEGER NOT NULL,
	warned     INTEGER NOT NULL DEFAULT 0,
	contested  INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX lock_grants_owned ON lock_grants (session, agent, holder);
CREATE UNIQUE INDEX lock_grants_ticket ON lock_grants (ticket) WHERE ticket IS NOT NULL;
CREATE INDEX lock_grants_broad ON lock_grants (session) WHERE broad;

CREATE TABLE lock_paths (
	session INTEGER NOT NULL,
	kind    INTEGER NOT NULL,
	place   TEXT    NOT NULL,
	fence   INTEGER NOT NULL,
	name    TEXT    NOT NULL,
	PRIMARY KEY (session, kind, place, fence, name)
) WITHOUT ROWID;

CREATE TABLE lock_tickets (
	ticket     INTEGER PRIMARY KEY,
	session    INTEGER NOT NULL,
	agent      TEXT    NOT NULL,
	holder     TEXT    NOT NULL,
	role       TEXT    NOT NULL,
	kind       INTEGER NOT NULL,
	mode       INTEGER NOT NULL,
	text       TEXT    NOT NULL,
	reason     TEXT    NOT NULL,
	created_at INTEGER NOT NULL,
	max_hold   INTEGER NOT NULL,
	kept       INTEGER NOT NULL
);
CREATE INDEX lock_tickets_session ON lock_tickets (session, ticket);
`

// Every index is one page more to write in most commits. Tickets are few, and read when the daemon starts; of a ticket's grant the agent is known.
const fewerIndexes = `
DROP INDEX lock_grants_ticket;
DROP INDEX lock_tickets_session;
`

// A row of lock_closings is a closed session that still has grants.
const closings = `
CREATE TABLE lock_closings (session INTEGER PRIMARY KEY);
`

// The condition compares, as the conditions of queries do: an index serves a query only if the query repeats its
// condition.
const broadIndex = `
DROP INDEX lock_grants_broad;
CREATE INDEX lock_grants_broad ON lock_grants (session) WHERE broad = 1;
`

// Migrations returns the steps that make the tables of locks.
func Migrations() []store.Migration {
	return []store.Migration{
		{Name: "locks/001_locks", SQL: requests, Server: strings.Replace(requests, "WHERE broad;", "WHERE broad = 1;", 1)},
		{Name: "locks/002_tokens", SQL: tokenTables}, {Name: "locks/003_indexes", SQL: fewerIndexes},
		{Name: "locks/004_closings", SQL: closings}, {Name: "locks/005_broad", SQL: broadIndex},
	}
}

const insertGrant = `
INSERT INTO lock_grants (fence, session, agent, holder, role, kind, mode, text, globs, broad, reason,
                         granted_at, held_until, max_hold, ticket, kept, collected)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const insertPlainGrant = `
INSERT INTO lock_grants (fence, session, agent, holder, role, kind, mode, text, globs, broad, reason,
                         granted_at, held_until, max_hold, kept, collected)
VALUES (?, ?, ?, ?, ?, ?, 1, ?, 0, 0, '', ?, ?, ?, 0, 1)`

const selectSpots = `
SELECT session, kind, place, count(*) FROM lock_paths GROUP BY session, kind, place`

const selectOwnedCounts = `
SELECT g.session, g.agent, count(*) FROM lock_paths p CROSS JOIN lock_grants g
WHERE g.fence = p.fence
GROUP BY g.session, g.agent`

const insertPath = `
INSERT INTO lock_paths (session, kind, place, fence, name) VALUES (?, ?, ?, ?, ?)`

const deletePath = `
DELETE FROM lock_paths WHERE session = ? AND kind = ? AND place = ? AND fence = ? AND name = ?`

const deleteGrant = `
DELETE FROM lock_grants WHERE fence = ?`

const updatePaths = `
UPDATE lock_grants SET text = ?, globs = ?, broad = ? WHERE fence = ?`

const updateCollected = `
UPDATE lock_grants SET collected = 1 WHERE fence = ? AND collected = 0`

const updateUncollected = `
UPDATE lock_grants SET collected = 0 WHERE fence = ? AND collected = 1 RETURNING kept`

const grantColumns = `
SELECT fence, session, agent, holder, role, kind, mode, text, reason, granted_at, held_until, max_hold, ticket, kept, collected,
       warned, contested
FROM lock_grants`

const selectGrant = grantColumns + `
WHERE fence = ?`

const selectGranted = grantColumns + `
WHERE session = ? AND agent = ? AND ticket = ?`

const selectOwned = grantColumns + `
WHERE session = ? AND agent = ? AND holder = ?
ORDER BY fence`

const selectAgents = grantColumns + `
WHERE session = ? AND agent = ?
ORDER BY fence`

const selectLocks = grantColumns + `
WHERE session = ? AND kind = 1 AND fence > ?
ORDER BY fence
LIMIT ?`

const selectAgentLocks = grantColumns + `
WHERE session = ? AND agent = ? AND kind = 1 AND fence > ?
ORDER BY fence
LIMIT ?`

const selectHeld = `
SELECT 1 FROM lock_grants WHERE fence = ? AND session = ? AND agent = ?`

const selectBroad = `
SELECT EXISTS (SELECT 1 FROM lock_grants WHERE session = ? AND broad = 1)`

const sumGlobs = `
SELECT coalesce(sum(globs), 0) FROM lock_grants WHERE session = ? AND broad = 1`

// Who stands where; the join runs from the paths to their grants.
const selectStanding = `
SELECT p.place, p.name, g.fence, g.agent, g.holder, g.mode, g.held_until, g.reason
FROM lock_paths p CROSS JOIN lock_grants g
WHERE p.session = ? AND p.kind = ? AND g.fence = p.fence`

const selectAt = selectStanding + ` AND p.place = ?`

const selectBelow = selectStanding + ` AND p.place > ? AND p.place < ?`

const insertTicket = `
INSERT INTO lock_tickets (ticket, session, agent, holder, role, kind, mode, text, reason, created_at, max_hold, kept, place)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const deleteTicket = `
DELETE FROM lock_tickets WHERE ticket = ?`

const updateTicketPaths = `
UPDATE lock_tickets SET text = ? WHERE ticket = ?`

const updateTicketKept = `
UPDATE lock_tickets SET kept = 1 WHERE ticket = ?`

const selectTickets = `
SELECT ticket, session, agent, holder, role, kind, mode, text, reason, created_at, max_hold, kept, place
FROM lock_tickets
WHERE session = ?
ORDER BY place`

const selectTicketSession = `
SELECT session FROM lock_tickets WHERE ticket = ?`

const updateWarned = `
UPDATE lock_grants SET warned = 1 WHERE fence = ?`

const updateContested = `
UPDATE lock_grants SET contested = 1 WHERE fence = ?`

const updateHold = `
UPDATE lock_grants SET max_hold = ?, held_until = ?, warned = 0 WHERE fence = ?`

const restartHolds = `
UPDATE lock_grants SET held_until = ? + max_hold, warned = 0`

const selectRunning = grantColumns + `
ORDER BY fence`

const selectWaiting = `
SELECT DISTINCT session FROM lock_tickets`

const selectAll = grantColumns + `
WHERE session = ? AND fence > ?
ORDER BY fence
LIMIT ?`

const selectEvery = grantColumns + `
WHERE fence > ?
ORDER BY fence
LIMIT ?`

const insertClosing = `
INSERT INTO lock_closings (session) VALUES (?) ON CONFLICT DO NOTHING`

const existsClosing = `
SELECT EXISTS (SELECT 1 FROM lock_closings WHERE session = ?)`

const selectClosings = `
SELECT session FROM lock_closings`

const deleteClosing = `
DELETE FROM lock_closings WHERE session = ?`

const deleteSomeTokens = `
DELETE FROM lock_tokens WHERE (session, token) IN (SELECT session, token FROM lock_tokens WHERE session = ? LIMIT ?)`
