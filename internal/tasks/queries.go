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

// selectReady reads a queue from a place on.
const selectReady = `
SELECT ` + taskColumns + ` FROM tasks t
WHERE t.queue = ? AND t.state = 2 AND t.due_at IS NULL AND (t.rank, t.created) > (?, ?)
ORDER BY t.rank, t.created
LIMIT ?`

const nextDelayed = `
SELECT due_at FROM tasks WHERE queue = ? AND state = 2 AND due_at IS NOT NULL ORDER BY due_at LIMIT 1`

const anyReady = `
SELECT 1 FROM tasks WHERE session = ? AND state = 2 LIMIT 1`

const selectDue = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.due_at <= ? ORDER BY t.due_at LIMIT ?`

const nextDue = `
SELECT due_at FROM tasks WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1`

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

const selectAllHeld = `
SELECT ` + taskColumns + ` FROM tasks t
WHERE t.session = ? AND t.state IN (3, 4) AND t.created > ?
ORDER BY t.created
LIMIT ?`

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

const selectWaitingDependents = `
SELECT ` + taskColumns + `
FROM task_dependencies d JOIN tasks t ON t.created = d.task
WHERE d.needs = ? AND t.state = 1
ORDER BY d.task`

const selectDependents = `
SELECT t.id, t.title, t.state, t.holder, t.revision
FROM task_dependencies d JOIN tasks t ON t.created = d.task
WHERE d.needs = ?
ORDER BY d.task
LIMIT ?`

const selectParts = `
SELECT id, title, state, holder, revision FROM tasks WHERE parent = ? ORDER BY created LIMIT ?`

// selectAffected reads the unfinished dependents and parts of a task.
const selectAffected = `
SELECT d.task FROM task_dependencies d JOIN tasks t ON t.created = d.task WHERE d.needs = ? AND t.state < 5
UNION
SELECT created FROM tasks WHERE parent = ? AND state < 5`

const insertAttempt = `
INSERT INTO task_attempts (revision, task, number, agent, claimed_at, ended_at, error)
VALUES (?, ?, ?, ?, ?, ?, ?)`

const selectAttempts = `
SELECT number, agent, claimed_at, ended_at, error
FROM (SELECT * FROM task_attempts WHERE task = ? ORDER BY revision DESC LIMIT ?) AS newest
ORDER BY revision`

const countUnfinished = `
SELECT count(*) FROM (SELECT 1 FROM tasks WHERE session = ? AND state < 5 LIMIT ?) AS some`

const countState = `
SELECT count(*) FROM (SELECT 1 FROM tasks WHERE session = ? AND state = ? LIMIT ?) AS some`

// listFilter is what the lists have in common. An argument that is empty does not restrict.
const listFilter = `
  AND (? = '' OR t.holder = ? AND t.state IN (3, 4))
  AND (? = '' OR t.assignee = ?)
  AND (? = '' OR t.role = ?)
  AND (? = 0 OR t.parent = ?)
  AND (? = '' OR t.creator = ?)`

const oldestFirst = `
  AND t.created > ?
ORDER BY t.created
LIMIT ?`

const newestFirst = `
  AND t.created < ?
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

// selectFinished reads finished tasks on which no unfinished task depends and that have no
// unfinished parts.
const finishedTasks = `
FROM tasks t
WHERE t.session = ? AND t.finished_at IS NOT NULL AND t.finished_at <= ?
  AND NOT EXISTS (
	SELECT 1 FROM task_dependencies d JOIN tasks u ON u.created = d.task WHERE d.needs = t.created AND u.state < 5)
  AND NOT EXISTS (SELECT 1 FROM tasks u WHERE u.parent = t.created AND u.state < 5)`

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

const deleteDependents = `
DELETE FROM task_dependencies WHERE needs = ?`

const deleteQueues = `
DELETE FROM task_queues WHERE session = ?`

const selectStuck = `
SELECT ` + taskColumns + ` FROM tasks t WHERE t.session = ? AND t.state = ? ORDER BY t.created LIMIT ?`
