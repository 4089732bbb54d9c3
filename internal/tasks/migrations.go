package tasks

import (
	"strings"

	"brokerd/internal/store"
)

// Migrations returns the steps that create the tables of tasks. The numbers in partial indexes are
// those of the states of the API.
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
`}, {
		Name: "tasks/002_labels", SQL: labelTables, Server: strings.Replace(labelTables, fillLabels, "", 1),
	}, {Name: "tasks/003_attempts", SQL: `
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

const labelTables = `
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
` + fillLabels + `
-- A queue exists as long as an unfinished task is in it.
CREATE INDEX tasks_queue ON tasks (queue) WHERE state < 5;
DELETE FROM task_queues
WHERE NOT EXISTS (SELECT 1 FROM tasks t WHERE t.queue = task_queues.id AND t.state < 5);

DROP INDEX tasks_held;
CREATE INDEX tasks_held ON tasks (session, holder, fence) WHERE state IN (3, 4);
DROP INDEX tasks_assigned;
CREATE INDEX tasks_assigned ON tasks (session, assignee) WHERE assignee IS NOT NULL AND state < 5;
`

// fillLabels fills the table from tasks that are older than it.
const fillLabels = `INSERT INTO task_labels (queue, name, value, rank, task)
SELECT t.queue, l.key, l.value, t.rank, t.created
FROM tasks t, json_each(CASE WHEN json_valid(t.labels) THEN t.labels ELSE '{}' END) l
WHERE t.state = 2 AND t.due_at IS NULL AND t.labels IS NOT NULL;
`
