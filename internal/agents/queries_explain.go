package agents

const selectCrew = `
SELECT name, role, last_seen_at, failed_at FROM agents WHERE session = ? AND registered ORDER BY name`

const selectEverAgent = columns + `
WHERE session = ? AND name = ?`
