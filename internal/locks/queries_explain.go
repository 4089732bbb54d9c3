package locks

const selectSomeOfAgent = selectAgents + `
LIMIT ?`

const countAll = `
SELECT (SELECT COUNT(*) FROM lock_grants WHERE session = ?1),
	(SELECT COUNT(*) FROM lock_paths WHERE session = ?1 AND kind = 2),
	(SELECT COUNT(*) FROM lock_tickets WHERE session = ?1)`
