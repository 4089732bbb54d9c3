package agents

const selectCrew = `
SELECT name, role, last_seen_at, failed_at FROM agents WHERE session = ? AND registered = 1 ORDER BY name`

const selectEverAgent = columns + `
WHERE session = ? AND name = ?`

const selectTeam = `
SELECT id, name, role, status, activity, registered_at, last_seen_at, failed_at
FROM agents
WHERE session = ? AND registered = 1
ORDER BY failed_at IS NULL, name
LIMIT ?`
