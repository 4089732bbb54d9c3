package agents

const selectCrew = `
SELECT name, role, last_seen_at, failed_at, stopped_at FROM agents WHERE session = ? AND registered = 1 ORDER BY name`

const selectTroubled = `
SELECT name, status, status_reason, changed_at
FROM agents
WHERE session = ? AND registered = 1 AND status IN (8 /* degraded */, 9 /* failed */) AND failed_at IS NULL
ORDER BY status DESC, name
LIMIT ?`

const selectEverAgent = columns + `
WHERE session = ? AND name = ?`

const selectTeam = `
SELECT id, name, role, status, activity, registered_at, last_seen_at, failed_at, stopped_at,
       harness_session, harness_program, harness_state, harness_tool, harness_listening, harness_since
FROM agents
WHERE session = ? AND registered = 1
ORDER BY failed_at IS NULL, name
LIMIT ?`
