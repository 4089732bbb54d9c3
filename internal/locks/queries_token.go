package locks

// A token has a row from when it is first asked for. passed is the fence that it was passed on under: as long as that is held, passed_by and
// note are about it. An agent that a token was passed to while it was not alive has a row in lock_firsts until it gets it: its request stands in front of all others.
const tokenTables = `
CREATE TABLE lock_tokens (
	session   INTEGER NOT NULL,
	token     TEXT    NOT NULL,
	longest   INTEGER NOT NULL,
	revision  INTEGER NOT NULL DEFAULT 0,
	released_at INTEGER, -- when a hold last ended without a pass
	passed    INTEGER NOT NULL DEFAULT 0,
	passed_by TEXT    NOT NULL DEFAULT '',
	note      TEXT    NOT NULL DEFAULT '',
	PRIMARY KEY (session, token)
) WITHOUT ROWID;

CREATE TABLE lock_firsts (
	session   INTEGER NOT NULL,
	token     TEXT    NOT NULL,
	agent     TEXT    NOT NULL,
	revision  INTEGER NOT NULL,
	passed_by TEXT    NOT NULL,
	note      TEXT    NOT NULL,
	PRIMARY KEY (session, token, agent)
) WITHOUT ROWID;

ALTER TABLE lock_tickets ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
UPDATE lock_tickets SET place = ticket;
`

const insertToken = `
INSERT INTO lock_tokens (session, token, longest) VALUES (?, ?, ?)`

const selectTokenRow = `
SELECT longest, revision, released_at, passed, passed_by, note FROM lock_tokens WHERE session = ? AND token = ?`

const updateToken = `
UPDATE lock_tokens SET revision = ? WHERE session = ? AND token = ?`

const updateReleased = `
UPDATE lock_tokens SET released_at = ? WHERE session = ? AND token = ?`

const updatePassed = `
UPDATE lock_tokens SET passed = ?, passed_by = ?, note = ? WHERE session = ? AND token = ?`

const selectToken = grantColumns + `
WHERE fence = (SELECT fence FROM lock_paths WHERE session = ? AND kind = 2 AND place = ?)`

const updateOwner = `
UPDATE lock_grants SET agent = ?, holder = ?, role = ? WHERE fence = ?`

const insertFirst = `
INSERT INTO lock_firsts (session, token, agent, revision, passed_by, note) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (session, token, agent) DO UPDATE SET revision = excluded.revision, passed_by = excluded.passed_by, note = excluded.note`

const selectFirst = `
SELECT revision, passed_by, note FROM lock_firsts WHERE session = ? AND token = ? AND agent = ?`

const deleteFirst = `
DELETE FROM lock_firsts WHERE session = ? AND token = ? AND agent = ?`

const deleteAgentsFirsts = `
DELETE FROM lock_firsts WHERE session = ? AND agent = ?`

const deleteSomeFirsts = `
DELETE FROM lock_firsts
WHERE (session, token, agent) IN (
	SELECT session, token, agent FROM lock_firsts WHERE session = ? LIMIT ?)`

// The join runs from the tokens to who holds them.
const selectTokens = `
SELECT k.token, k.longest, k.revision, k.released_at, k.passed, g.fence
FROM lock_tokens k
LEFT JOIN lock_paths p ON p.session = k.session AND p.kind = 2 AND p.place = k.token
LEFT JOIN lock_grants g ON g.fence = p.fence
WHERE k.session = ? AND k.token > ? AND k.token < ? AND (? = '' OR g.agent = ?)
ORDER BY k.token
LIMIT ?`
