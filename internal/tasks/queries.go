package tasks

const taskColumns = `
t.created, t.session, t.id, t.title, t.labels, t.rank, t.role, t.assignee, t.capabilities, t.parent, t.max_attempts,
t.stale_after, t.creator, t.queue, t.texts, t.needs, t.state, t.revision, t.entered, t.missing, t.holder, t.fence,
t.attempts, t.progress, t.note, t.error, t.reason, t.unblocked, t.created_at, t.ready_at, t.claimed_at, t.updated_at,
t.blocked_at, t.finished_at, t.due_at`

const insertTask = `
INSERT INTO tasks (created, session, id, title, labels, rank, role, assignee, capabilities, parent, max_attempts,
	stale_after, creator, creator_role, queue, texts, needs, state, revision, entered, missing, attempts, progress,
	unblocked, created_at, ready_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?, ?)`

// updateTask stores what changes in the course of a task's life.
const updateTask = `
UPDATE tasks
SET state = ?, revision = ?, entered = ?, missing = ?, holder = ?, fence = ?, attempts = ?, progress = ?, note = ?,
    error = ?, reason = ?, unblocked = ?, ready_at = ?, claimed_at = ?, updated_at = ?, blocked_at = ?, finished_at = ?,
    due_at = ?
WHERE created = ?`

const updateDescription = `
UPDATE tasks SET title = ?, labels = ?, rank = ?, revision = ? WHERE created = ?`

const updateAssignee = `
UPDATE tasks SET assignee = ?, queue = ? WHERE created = ?`

const updateParent = `
UPDATE tasks SET parent = ? WHERE created = ?`

const updateLiveness = `
UPDATE tasks SET updated_at = ?, due_at = ? WHERE created = ?`

const selectTask = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.created = ?`

const selectByID = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.session = ? AND t.id = ?`

const selectBrief = `
SELECT id, title, state, holder, revision FROM tasks WHERE created = ?`

const updateTexts = `
UPDATE tasks SET texts = 1 WHERE created = ?`

const insertTexts = `
INSERT INTO task_texts (task, description, artifacts) VALUES (?, ?, ?)`

const putDescription = `
INSERT INTO task_texts (task, description) VALUES (?, ?)
ON CONFLICT (task) DO UPDATE SET description = excluded.description`

const putResult = `
INSERT INTO task_texts (task, result, result_artifacts) VALUES (?, ?, ?)
ON CONFLICT (task) DO UPDATE SET result = excluded.result, result_artifacts = excluded.result_artifacts`

const selectTexts = `
SELECT description, artifacts, result, result_artifacts FROM task_texts WHERE task = ?`

const selectQueues = `
SELECT id, assignee, role, capabilities FROM task_queues WHERE session = ?`

const insertQueue = `
INSERT INTO task_queues (id, session, assignee, role, capabilities) VALUES (?, ?, ?, ?, ?)`

const deleteQueue = `
DELETE FROM task_queues WHERE id = ?`

const existsInQueue = `
SELECT 1 FROM tasks WHERE queue = ? AND state < 5 LIMIT 1`

// readyWithin and readyBeyond read the places of the tasks of a queue that a claim can take, behind a
// place: those of its rank, and those of later ranks.
const readyWithin = `
SELECT rank, created FROM tasks
WHERE queue = ? AND state = 2 AND due_at IS NULL AND rank = ? AND created > ?
ORDER BY created
LIMIT ?`

const readyBeyond = `
SELECT rank, created FROM tasks
WHERE queue = ? AND state = 2 AND due_at IS NULL AND rank > ?
ORDER BY rank, created
LIMIT ?`

const labelledWithin = `
SELECT rank, task FROM task_labels
WHERE queue = ? AND name = ? AND value = ? AND rank = ? AND task > ?
ORDER BY task
LIMIT ?`

const labelledBeyond = `
SELECT rank, task FROM task_labels
WHERE queue = ? AND name = ? AND value = ? AND rank > ?
ORDER BY rank, task
LIMIT ?`

const countLabelled = `
SELECT count(*) FROM (SELECT 1 FROM task_labels WHERE queue = ? AND name = ? AND value = ? LIMIT ?) AS counted`

const existsLabel = `
SELECT 1 FROM task_labels WHERE queue = ? AND name = ? AND value = ? AND rank = ? AND task = ?`

const insertLabel = `
INSERT INTO task_labels (queue, name, value, rank, task) VALUES (?, ?, ?, ?, ?)`

const deleteLabels = `
DELETE FROM task_labels WHERE task = ?`

const nextDelayed = `
SELECT due_at FROM tasks WHERE queue = ? AND state = 2 AND due_at IS NOT NULL ORDER BY due_at LIMIT 1`

const anyReady = `
SELECT 1 FROM tasks WHERE session = ? AND state = 2 LIMIT 1`

const selectDue = `
SELECT created, due_at FROM tasks WHERE due_at IS NOT NULL ORDER BY due_at LIMIT ?`

const selectHeld = `
SELECT ` + taskColumns + ` FROM tasks t
WHERE t.session = ? AND t.holder = ? AND t.state IN (3, 4)
ORDER BY t.fence
LIMIT ?`

const selectClaimsHeld = `
SELECT session, holder, COUNT(*), MIN(claimed_at)
FROM tasks
WHERE state IN (3, 4) AND state = 3
GROUP BY session, holder`

const existsClaim = `
SELECT 1 FROM tasks WHERE session = ? AND holder = ? AND state IN (3, 4) AND fence = ?`

const selectAssigned = `
SELECT ` + taskColumns + ` FROM tasks t
WHERE t.session = ? AND t.assignee = ? AND t.state < 5
ORDER BY t.created
LIMIT ?`

// selectHeldBetween reads the tasks that an agent has claimed behind one fence and up to another.
const selectHeldBetween = `
SELECT ` + taskColumns + ` FROM tasks t
WHERE t.session = ? AND t.holder = ? AND t.state IN (3, 4) AND t.fence > ? AND t.fence <= ?
ORDER BY t.fence
LIMIT ?`

const selectLosses = `
SELECT id, fence FROM tasks
WHERE session = ? AND holder = ? AND state IN (3, 4) AND fence <= ?
ORDER BY fence
LIMIT ?`

const selectAllHeld = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.session = ? AND t.holder IS NOT NULL AND t.state IN (3, 4) LIMIT ?`

const insertDependency = `
INSERT INTO task_dependencies (task, number, needs) VALUES (?, ?, ?)`

const selectDependencies = `
SELECT t.id, t.title, t.state, t.holder, t.revision
FROM task_dependencies d JOIN tasks t ON t.created = d.needs
WHERE d.task = ?
ORDER BY d.number`

const selectNeeds = `
SELECT t.created, t.id, t.state, t.holder
FROM task_dependencies d JOIN tasks t ON t.created = d.needs
WHERE d.task = ? AND t.state <> 5
ORDER BY d.number`

const selectDependentKeys = `
SELECT task FROM task_dependencies WHERE needs = ? AND task > ? AND task <= ? ORDER BY task LIMIT ?`

const selectDependents = `
SELECT t.id, t.title, t.state, t.holder, t.revision
FROM task_dependencies d JOIN tasks t ON t.created = d.task
WHERE d.needs = ?
ORDER BY d.task
LIMIT ?`

const selectParts = `
SELECT id, title, state, holder, revision FROM tasks WHERE parent = ? ORDER BY created LIMIT ?`

// selectAffected reads the keys of the dependents and parts of a task, behind a key.
const selectAffected = `
SELECT task FROM (
	SELECT task FROM task_dependencies WHERE needs = ? AND task > ? AND task <= ? ORDER BY task LIMIT ?) AS dependents
UNION
SELECT created FROM (
	SELECT created FROM tasks WHERE parent = ? AND created > ? AND created <= ? ORDER BY created LIMIT ?) AS parts
ORDER BY 1
LIMIT ?`

const insertAttempt = `
INSERT INTO task_attempts (revision, task, number, agent, claimed_at, ended_at, error)
VALUES (?, ?, ?, ?, ?, ?, ?)`

const selectAttempts = `
SELECT number, agent, claimed_at, ended_at, error
FROM (SELECT * FROM task_attempts WHERE task = ? ORDER BY revision DESC LIMIT ?) AS newest
ORDER BY revision`

// deleteOldAttempt deletes the attempt before the newest ones, of which it gets the number.
const deleteOldAttempt = `
DELETE FROM task_attempts
WHERE revision IN (SELECT revision FROM task_attempts WHERE task = ? ORDER BY revision DESC LIMIT 1 OFFSET ?)`

const countUnfinished = `
SELECT session, count(*) FROM tasks WHERE state < 5 GROUP BY session`

const countState = `
SELECT count(*) FROM (SELECT 1 FROM tasks WHERE session = ? AND state = ? LIMIT ?) AS counted`

// listFilter is what the lists have in common. An argument that is empty does not restrict.
const listFilter = `
  AND (? = '' OR t.holder = ? AND t.state IN (3, 4))
  AND (? = '' OR t.assignee = ?)
  AND (? = '' OR t.role = ?)
  AND (? = 0 OR t.parent = ?)
  AND (? = '' OR t.creator = ?)`

const oldestFirst = `
  AND t.created > ? AND t.created <= ?
ORDER BY t.created
LIMIT ?`

const newestFirst = `
  AND t.created < ? AND t.created >= ?
ORDER BY t.created DESC
LIMIT ?`

const listSession = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.session = ?` + listFilter + oldestFirst

const listSessionNewest = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.session = ?` + listFilter + newestFirst

const listState = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.session = ? AND t.state = ?` + listFilter + oldestFirst

const listStateNewest = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.session = ? AND t.state = ?` + listFilter + newestFirst

// The following read the key of the last task that a page of a list may read.
const endOfSession = `
SELECT created FROM tasks WHERE session = ? AND created > ? ORDER BY created LIMIT 1 OFFSET ?`

const endOfSessionNewest = `
SELECT created FROM tasks WHERE session = ? AND created < ? ORDER BY created DESC LIMIT 1 OFFSET ?`

const endOfState = `
SELECT created FROM tasks WHERE session = ? AND state = ? AND created > ? ORDER BY created LIMIT 1 OFFSET ?`

const endOfStateNewest = `
SELECT created FROM tasks WHERE session = ? AND state = ? AND created < ? ORDER BY created DESC LIMIT 1 OFFSET ?`

// selectFinished reads finished tasks on which no unfinished task depends and that have no
// unfinished parts.
const finishedTasks = `
FROM tasks t
WHERE t.session = ? AND t.finished_at IS NOT NULL AND t.finished_at <= ?
  AND NOT EXISTS (
	SELECT 1 FROM task_dependencies d JOIN tasks u ON u.created = d.task WHERE d.needs = t.created AND u.state < 5)
  AND NOT EXISTS (SELECT 1 FROM tasks u WHERE u.parent = t.created AND u.state < 5)`

// deleteFinished removes a task under the conditions of finishedTasks.
const deleteFinished = `
DELETE FROM tasks
WHERE created = ? AND session = ? AND finished_at IS NOT NULL
  AND NOT EXISTS (
	SELECT 1 FROM task_dependencies d JOIN tasks u ON u.created = d.task WHERE d.needs = tasks.created AND u.state < 5)
  AND NOT EXISTS (SELECT 1 FROM tasks u WHERE u.parent = tasks.created AND u.state < 5)`

const selectFinished = `
SELECT ` + taskColumns + finishedTasks + `
ORDER BY t.finished_at
LIMIT ?`

const countFinished = `
SELECT count(*)` + finishedTasks

const deleteTask = `
DELETE FROM tasks WHERE created = ?`

const deleteTexts = `
DELETE FROM task_texts WHERE task = ?`

const deleteAttempts = `
DELETE FROM task_attempts WHERE task = ?`

const deleteDependencies = `
DELETE FROM task_dependencies WHERE task = ?`

const deleteSomeQueues = `
DELETE FROM task_queues WHERE id IN (SELECT id FROM task_queues WHERE session = ? LIMIT ?)`

const selectStuck = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.session = ? AND t.state = ? ORDER BY t.created LIMIT ?`

const selectRecords = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.session = ? AND t.created > ? ORDER BY t.created LIMIT ?`

const selectKeys = `
SELECT created FROM tasks WHERE session = ? ORDER BY created LIMIT ?`

// selectArtifactLists reads in the order of the last changes: a task that is completed with artifacts
// comes again.
const selectArtifactLists = `
SELECT t.revision, COALESCE(x.artifacts, '') || ' ' || COALESCE(x.result_artifacts, '')
FROM tasks t CROSS JOIN task_texts x
WHERE t.session = ? AND t.texts = 1 AND t.revision > ? AND x.task = t.created
ORDER BY t.revision
LIMIT 1000`
