package decisions

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Migrations returns the steps of the tables of decisions, which are those of work.Migrations by now.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "decisions/001_decisions", SQL: `
CREATE TABLE decisions (
	id           INTEGER PRIMARY KEY, -- the revision that opened it
	session      INTEGER NOT NULL,
	kind         INTEGER NOT NULL,
	state        INTEGER NOT NULL, -- up to 3 = unfinished
	opened_by    TEXT NOT NULL,
	agent        TEXT,
	role         TEXT,
	escalated_to TEXT,
	title        TEXT NOT NULL,
	scope        TEXT,
	task_id      TEXT,
	thread       TEXT NOT NULL,
	verdicts     TEXT NOT NULL, -- JSON list
	round        INTEGER NOT NULL,
	max_rounds   INTEGER NOT NULL,
	deadline     INTEGER,
	pass_token   INTEGER NOT NULL,
	fence        INTEGER, -- of the token's last pass
	verdict      TEXT,
	note         TEXT,
	opened_at    INTEGER NOT NULL,
	changed_at   INTEGER NOT NULL,
	revision     INTEGER NOT NULL,
	message_type TEXT NOT NULL,
	outcome_type TEXT NOT NULL,
	body         TEXT,
	payload      TEXT,
	files        TEXT, -- JSON list
	artifacts    TEXT  -- JSON list
);
CREATE INDEX decisions_session ON decisions (session, id);
CREATE INDEX decisions_unfinished ON decisions (session, state, id) WHERE state <= 3;
CREATE UNIQUE INDEX decisions_scope ON decisions (session, kind, scope) WHERE scope IS NOT NULL AND state <= 3;
CREATE INDEX decisions_scopes ON decisions (session, scope, id) WHERE scope IS NOT NULL;
CREATE INDEX decisions_task ON decisions (session, task_id, id) WHERE task_id IS NOT NULL;
CREATE INDEX decisions_deadline ON decisions (deadline) WHERE deadline IS NOT NULL AND state = 1;
CREATE INDEX decisions_finished ON decisions (session, changed_at, id) WHERE state > 3;

CREATE TABLE decision_verdicts (
	revision   INTEGER PRIMARY KEY, -- of the change
	decision   INTEGER NOT NULL,
	round      INTEGER NOT NULL,
	escalated  INTEGER NOT NULL,
	verdict    TEXT NOT NULL,
	decided_by TEXT NOT NULL,
	decided_at INTEGER NOT NULL,
	reason     TEXT,
	feedback   TEXT, -- JSON list
	until      INTEGER,
	UNIQUE (decision, round, escalated)
);
`}, {Name: "decisions/002_artifacts", SQL: `
-- The search for mentions of artifacts reads decisions in the order of their changes.
CREATE INDEX decisions_artifacts ON decisions (session, revision) WHERE artifacts IS NOT NULL;
`}, {Name: "decisions/003_items", SQL: `
UPDATE work_backlog SET feature = 'decision' WHERE feature = 'decisions'`, Convert: convert}}
}

const (
	selectOld = `
		SELECT id, session, kind, state, opened_by, agent, role, escalated_to, title, scope, task_id, thread, verdicts,
		round, max_rounds,
			deadline, pass_token, fence, verdict, note, opened_at, changed_at, revision, message_type, outcome_type,
			body, payload, files, artifacts
		FROM decisions WHERE id > ? ORDER BY id LIMIT 20`
	selectOldVerdicts = `
		SELECT revision, round, escalated, verdict, decided_by, decided_at, reason, feedback, until
		FROM decision_verdicts WHERE decision = ? ORDER BY round, escalated`
)

// convert makes items of the rows of the old tables, and drops these.
func convert(d store.Converter) error {
	read := func(rows *store.Rows) (work.Old[*pb.Decision], error) { return oldDecision(d, rows) }
	err := work.Convert(d, selectOld, kind, read)
	if err != nil {
		return err
	}
	return errors.Join(d.Exec(`DROP TABLE decisions`), d.Exec(`DROP TABLE decision_verdicts`))
}

// oldDecision reads a row of selectOld, with its verdicts. A list that is damaged becomes text of the content.
func oldDecision(c store.Converter, rows *store.Rows) (o work.Old[*pb.Decision], err error) {
	d := &pb.Decision{Content: &pb.DecisionContent{}}
	var kindOf, state int32
	var deadline, opened, changed time.Time
	var verdicts, files, artifacts []byte
	err = rows.Scan(&o.Key, &o.Session, &kindOf, &state, &d.Opener, &d.Agent, &d.Role, &d.EscalatedTo, &d.Title,
		&d.Scope, &d.TaskId,
		&d.ThreadId, &verdicts, &d.Round, &d.MaxRounds, &deadline, &d.PassToken, &d.TokenFence, &d.Verdict, &d.Note,
		&opened, &changed,
		&d.Revision, &d.MessageType, &d.OutcomeType, &d.Content.Body, &d.Content.Payload, &files, &artifacts)
	if err != nil {
		return o, err
	}
	d.Id, d.Kind, d.State = work.ID("d", o.Key), pb.DecisionKind(kindOf), pb.DecisionState(state)
	d.Deadline, d.OpenedAt, d.ChangedAt = work.Stamp(deadline), work.Stamp(opened), work.Stamp(changed)
	d.Verdicts = oldList[string](verdicts, &d.Content.Body)
	d.Content.Artifacts = oldList[string](artifacts, &d.Content.Body)
	for _, f := range oldList[file](files, &d.Content.Body) {
		d.Content.Files = append(d.Content.Files, &pb.FileReference{Path: f.Path, Line: f.Line})
	}
	o.Item = d
	o.Part("content", d.Revision, &pb.Decision{Content: d.Content})
	given, err := store.Collect(c.Query(selectOldVerdicts, o.Key), oldVerdict)
	for _, v := range given {
		d.Rounds = append(d.Rounds, v)
		o.Part(verdictPart(v), v.Revision, &pb.Decision{Rounds: []*pb.Verdict{v}})
	}
	return o, err
}

// oldVerdict reads a row of selectOldVerdicts. Feedback that is damaged becomes text of the reason.
func oldVerdict(r *store.Rows) (*pb.Verdict, error) {
	v := &pb.Verdict{}
	var decidedAt, until time.Time
	var remarks []byte
	err := r.Scan(&v.Revision, &v.Round, &v.Escalated, &v.Verdict, &v.DecidedBy, &decidedAt, &v.Reason, &remarks, &until)
	v.DecidedAt, v.Until = work.Stamp(decidedAt), work.Stamp(until)
	for _, f := range oldList[feedback](remarks, &v.Reason) {
		severity, known := pb.FeedbackSeverity_value["FEEDBACK_SEVERITY_"+strings.ToUpper(f.Severity)]
		if !known {
			severity = int32(pb.FeedbackSeverity_FEEDBACK_SEVERITY_BLOCKER)
		}
		v.Feedback = append(v.Feedback, &pb.Feedback{
			Severity: pb.FeedbackSeverity(severity), File: f.File, Line: f.Line, Text: f.Text,
		})
	}
	return v, err
}

// oldList reads a list of the old tables, which is absent or JSON. Damaged JSON goes to a text.
func oldList[E any](text []byte, damaged *string) (list []E) {
	if len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, &list); err != nil {
		*damaged += "\n" + string(text)
	}
	return list
}
