package tasks

import "brokerd/internal/store"

// Migrations returns the steps that create the tables of tasks. The numbers in partial indexes are
// those of State.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "tasks/001_tasks", SQL: `
CREATE TABLE tasks (
	created      INTEGER PRIMARY KEY, -- the revision that created it
	session      INTEGER NOT NULL,
	id           TEXT NOT NULL,
	title        TEXT NOT NULL,
	labels       TEXT, -- JSON object
	rank         INTEGER NOT NULL, -- 10 - priority: claims take the lowest first
	role         TEXT,
	assignee     TEXT,
	capabilities TEXT, -- JSON list, sorted
	parent       INTEGER, -- key in tasks
	max_attempts INTEGER NOT NULL,
	stale_after  INTEGER NOT NULL, -- 0 = never
	creator      TEXT NOT NULL,
	creator_role TEXT,
	queue        INTEGER NOT NULL, -- key in task_queues
	texts        INTEGER NOT NULL, -- it has a row in task_texts
	needs        INTEGER NOT NULL, -- dependencies
	state        INTEGER NOT NULL,
	revision     INTEGER NOT NULL, -- of its last change
	entered      INTEGER NOT NULL, -- revision of its last change of state
	missing      INTEGER NOT NULL, -- dependencies that are not DONE
	holder       TEXT,
	fence        INTEGER, -- of the present or last claim
	attempts     INTEGER NOT NULL, -- that have failed
	progress     REAL NOT NULL,
	note         TEXT,
	error        TEXT,
	reason       TEXT, -- BLOCKED
	unblocked    INTEGER NOT NULL, -- the last change of state was from BLOCKED to CLAIMED
	created_at   INTEGER NOT NULL,
	ready_at     INTEGER,
	claimed_at   INTEGER,
	updated_at   INTEGER,
	blocked_at   INTEGER,
	finished_at  INTEGER,
	due_at       INTEGER, -- READY: no claim before; CLAIMED: when it becomes stale
	UNIQUE (session, id)
);
CREATE INDEX tasks_ready ON tasks (queue, rank) WHERE state = 2 AND due_at IS NULL;
CREATE INDEX tasks_delayed ON tasks (queue, due_at) WHERE state = 2 AND due_at IS NOT NULL;
CREATE INDEX tasks_held ON tasks (session, holder) WHERE state IN (3, 4);
CREATE INDEX tasks_due ON tasks (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX tasks_session ON tasks (session);
CREATE INDEX tasks_state ON tasks (session, state);
CREATE INDEX tasks_finished ON tasks (session, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX tasks_assigned ON tasks (session, assignee) WHERE assignee IS NOT NULL;
CREATE INDEX tasks_parts ON tasks (parent) WHERE parent IS NOT NULL;

-- The long texts, of a task that has any.
CREATE TABLE task_texts (
	task             INTEGER PRIMARY KEY,
	description      TEXT,
	artifacts        TEXT, -- JSON list
	result           TEXT,
	result_artifacts TEXT  -- JSON list
);

-- The READY tasks of a queue serve the same agents.
CREATE TABLE task_queues (
	id           INTEGER PRIMARY KEY,
	session      INTEGER NOT NULL,
	assignee     TEXT NOT NULL,
	role         TEXT NOT NULL,
	capabilities TEXT NOT NULL, -- JSON list, sorted
	UNIQUE (session, assignee, role, capabilities)
);

CREATE TABLE task_dependencies (
	task    INTEGER NOT NULL,
	number  INTEGER NOT NULL, -- in the order that the creator gave
	needs   INTEGER NOT NULL, -- key in tasks
	PRIMARY KEY (task, number)
) WITHOUT ROWID;
CREATE INDEX task_dependents ON task_dependencies (needs, task);

CREATE TABLE task_attempts (
	revision   INTEGER PRIMARY KEY, -- of the end of the attempt
	task       INTEGER NOT NULL,
	number     INTEGER NOT NULL,
	agent      TEXT NOT NULL,
	claimed_at INTEGER NOT NULL,
	ended_at   INTEGER NOT NULL,
	error      TEXT NOT NULL
);
CREATE INDEX task_attempts_task ON task_attempts (task);
`}, {Name: "tasks/002_labels", SQL: `
-- The labels of the tasks that a claim can take now.
CREATE TABLE task_labels (
	queue INTEGER NOT NULL,
	name  TEXT NOT NULL,
	value TEXT NOT NULL,
	rank  INTEGER NOT NULL,
	task  INTEGER NOT NULL,
	PRIMARY KEY (queue, name, value, rank, task)
) WITHOUT ROWID;
CREATE INDEX task_labels_task ON task_labels (task);
INSERT INTO task_labels (queue, name, value, rank, task)
SELECT t.queue, l.key, l.value, t.rank, t.created
FROM tasks t, json_each(CASE WHEN json_valid(t.labels) THEN t.labels ELSE '{}' END) l
WHERE t.state = 2 AND t.due_at IS NULL AND t.labels IS NOT NULL;

-- A queue exists as long as an unfinished task is in it.
CREATE INDEX tasks_queue ON tasks (queue) WHERE state < 5;
DELETE FROM task_queues
WHERE NOT EXISTS (SELECT 1 FROM tasks t WHERE t.queue = task_queues.id AND t.state < 5);

DROP INDEX tasks_held;
CREATE INDEX tasks_held ON tasks (session, holder, fence) WHERE state IN (3, 4);
DROP INDEX tasks_assigned;
CREATE INDEX tasks_assigned ON tasks (session, assignee) WHERE assignee IS NOT NULL AND state < 5;
`}, {Name: "tasks/003_attempts", SQL: `
-- A task keeps its newest 100 attempts.
DELETE FROM task_attempts
WHERE revision <= (
	SELECT a.revision FROM task_attempts a WHERE a.task = task_attempts.task
	ORDER BY a.revision DESC LIMIT 1 OFFSET 100);
`}, {Name: "tasks/004_changes", SQL: `
-- The search for mentions of artifacts reads tasks in the order of their changes.
CREATE INDEX tasks_texts ON tasks (session, revision) WHERE texts = 1;
`}}
}

const taskColumns = `
t.created, t.session, t.id, t.title, t.labels, t.rank, t.role, t.assignee, t.capabilities, t.parent, t.max_attempts,
t.stale_after, t.creator, t.creator_role, t.queue, t.texts, t.needs, t.state, t.revision, t.entered, t.missing, t.holder, t.fence,
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
