package locks

const selectSomeOfAgent = selectAgents + `
LIMIT ?`

const countAll = `
SELECT (SELECT COUNT(*) FROM lock_grants WHERE session = ?1),
	(SELECT COUNT(*) FROM lock_paths WHERE session = ?1 AND kind = 2),
	(SELECT COUNT(*) FROM lock_tickets WHERE session = ?1)`

const countOwned = `
SELECT agent, COUNT(*) FROM lock_grants WHERE session = ? GROUP BY agent`

// Tokens that were passed or granted to a ticket, and that their owners have not collected.
const selectGrantedOf = grantColumns + `
WHERE session = ? AND ticket = ?`

const selectUncollected = `
SELECT g.fence
FROM lock_paths p CROSS JOIN lock_grants g
WHERE p.session = ? AND p.kind = 2 AND g.fence = p.fence AND g.collected = 0 AND g.granted_at <= ?
LIMIT ?`
