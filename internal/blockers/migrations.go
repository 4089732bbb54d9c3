package blockers

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Migrations returns the steps of the tables of blockers, which are those of work.Migrations by now.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "blockers/001_blockers", SQL: `
CREATE TABLE blockers (
	id           INTEGER PRIMARY KEY, -- the revision that raised it
	session      INTEGER NOT NULL,
	revision     INTEGER NOT NULL,
	state        INTEGER NOT NULL, -- 3 = resolved
	agent        TEXT NOT NULL,
	reason       TEXT NOT NULL,
	severity     INTEGER NOT NULL,
	awaited_kind INTEGER NOT NULL, -- 0 = none
	awaited      TEXT NOT NULL,
	task_id      TEXT NOT NULL,
	task_blocked INTEGER NOT NULL,
	auto_resolve INTEGER NOT NULL,
	raised_at    INTEGER NOT NULL,
	escalates_at INTEGER,
	escalations  INTEGER NOT NULL,
	next_role    INTEGER NOT NULL,
	resolved_at  INTEGER,
	timeline     TEXT NOT NULL -- JSON list
);
CREATE INDEX blockers_session ON blockers (session, id);
CREATE INDEX blockers_unresolved ON blockers (session, state, id) WHERE state < 3;
CREATE INDEX blockers_awaited ON blockers (session, awaited_kind, awaited) WHERE state < 3;
CREATE INDEX blockers_task ON blockers (session, task_id, id) WHERE task_id <> '';
CREATE INDEX blockers_agent ON blockers (session, agent) WHERE state < 3;
CREATE INDEX blockers_escalation ON blockers (escalates_at) WHERE escalates_at IS NOT NULL;
CREATE INDEX blockers_resolved ON blockers (session, resolved_at) WHERE resolved_at IS NOT NULL;
`}, {
		Name: "blockers/002_acknowledgers", SQL: acknowledgers, Server: strings.Replace(acknowledgers, fillAcknowledgers, "", 1),
	}, {Name: "blockers/003_items", SQL: `
UPDATE work_backlog SET text = CASE item WHEN 1 THEN 'agent:' ELSE 'task:' END || name, item = 0
WHERE feature = 'blockers' AND kind = 'reached';
UPDATE work_backlog SET feature = 'blocker' WHERE feature = 'blockers'`, Convert: convert}}
}

const selectOld = `
SELECT id, session, revision, state, agent, reason, severity, awaited_kind, awaited, task_id, task_blocked,
       auto_resolve, raised_at, escalates_at, escalations, next_role, resolved_at, timeline
FROM blockers WHERE id > ? ORDER BY id LIMIT 20`

// convert makes items of the rows of the old tables, and drops these.
func convert(d store.Converter) error {
	if err := work.Convert(d, selectOld, kind, oldBlocker); err != nil {
		return err
	}
	return errors.Join(d.Exec(`DROP TABLE blockers`), d.Exec(`DROP TABLE blocker_acknowledgers`))
}

// An oldEntry is an entry of a timeline as the old table had it.
type oldEntry struct {
	Step      pb.BlockerStep `json:"step"`
	At        time.Time      `json:"at"`
	Agent     string         `json:"agent"`
	Recipient struct {
		Agent string `json:"agent"`
		Role  string `json:"role"`
	} `json:"recipient"`
	Message  int64  `json:"message"`
	Note     string `json:"note"`
	Revision int64  `json:"revision"`
}

// oldBlocker reads a row of selectOld. A timeline that is damaged becomes the note of an entry.
func oldBlocker(rows *store.Rows) (o work.Old[*pb.Blocker], err error) {
	b := &pb.Blocker{}
	var state, severity, awaitedKind int32
	var awaited string
	var raised, escalates, resolvedAt time.Time
	var timeline []byte
	err = rows.Scan(&o.Key, &o.Session, &b.Revision, &state, &b.Agent, &b.Reason, &severity, &awaitedKind, &awaited,
		&b.TaskId, &b.TaskBlocked,
		&b.AutoResolve, &raised, &escalates, &b.Escalations, &b.NextRole, &resolvedAt, &timeline)
	if err != nil {
		return o, err
	}
	b.Id, b.State, b.Severity = work.ID("b", o.Key), pb.BlockerState(state), pb.BlockerSeverity(severity)
	b.Awaited = oldAwaited(awaitedKind, awaited)
	b.RaisedAt, b.EscalatesAt, b.ResolvedAt = work.Stamp(raised), work.Stamp(escalates), work.Stamp(resolvedAt)
	var entries []oldEntry
	if err := json.Unmarshal(timeline, &entries); err != nil {
		entries = []oldEntry{
			{Step: pb.BlockerStep_BLOCKER_STEP_RAISED, At: raised, Agent: b.Agent, Revision: o.Key},
			{At: raised, Agent: work.Broker.Name, Revision: b.Revision, Note: "the entries were damaged: " + string(timeline)},
		}
	}
	addOld(b, clipTimeline(entries))
	o.Item = b
	if len(b.Reason) > rowReason {
		o.Part("reason", o.Key, &pb.Blocker{Reason: b.Reason})
	}
	for i, e := range b.Timeline {
		o.Part(entryPart(e, i), e.Revision, &pb.Blocker{Timeline: []*pb.BlockerTimelineEntry{e}})
	}
	return o, nil
}

// addOld makes the timeline of a blocker, and the fields that say who has done what.
func addOld(b *pb.Blocker, entries []oldEntry) {
	for _, e := range entries {
		entry := &pb.BlockerTimelineEntry{
			Step: e.Step, At: work.Stamp(e.At), Agent: e.Agent, Message: e.Message, Note: e.Note, Revision: e.Revision,
		}
		switch {
		case e.Recipient.Agent != "":
			entry.Recipient = toAgent(e.Recipient.Agent)
		case e.Recipient.Role != "":
			entry.Recipient = toRole(e.Recipient.Role)
		}
		switch e.Step {
		case pb.BlockerStep_BLOCKER_STEP_NOTIFIED:
			b.Recipients = append(b.Recipients, entry.Recipient)
		case pb.BlockerStep_BLOCKER_STEP_ACKNOWLEDGED:
			if len(b.AcknowledgedBy) == 0 {
				b.AcknowledgedAt = entry.At
			}
			b.AcknowledgedBy = append(b.AcknowledgedBy, e.Agent)
		case pb.BlockerStep_BLOCKER_STEP_REOPENED:
			b.AcknowledgedBy, b.AcknowledgedAt = nil, nil
		case pb.BlockerStep_BLOCKER_STEP_RESOLVED:
			b.ResolvedBy, b.Resolution = e.Agent, e.Note
		}
		b.Timeline = append(b.Timeline, entry)
	}
	if b.State == resolved {
		b.TimeBlocked = durationpb.New(timeBlocked(b, time.Time{}))
	}
}

// oldAwaited returns the awaited object of a kind of the old table.
func oldAwaited(kind int32, name string) *pb.AwaitedObject {
	switch kind {
	case 1:
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: name}}
	case 2:
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Role{Role: name}}
	case 3:
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_TaskId{TaskId: name}}
	case 4:
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Lock{Lock: name}}
	case 5:
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Text{Text: name}}
	}
	return nil
}

// The limits of acknowledgements and escalations bound a timeline. One that is older than they are can be
// longer: of such a one, the first and the last entries are kept.
const (
	mostEntries  = 200
	mostNotes    = 512 << 10             // bytes
	firstEntries = 1 + maxRecipients + 1 // with the awaited agent
	lastEntries  = 150                   // with at most mostNotes / 2
)

// clipTimeline leaves out entries in the middle of a timeline that is too long. An entry without a
// step says how many.
func clipTimeline(list []oldEntry) []oldEntry {
	notes := 0
	for _, e := range list {
		notes += len(e.Note)
	}
	if len(list) <= mostEntries && notes <= mostNotes {
		return list
	}
	first, rest := list[:min(firstEntries, len(list))], list[min(firstEntries, len(list)):]
	from := len(rest)
	for notes = 0; from > 0 && len(rest)-from < lastEntries; from-- {
		if notes += len(rest[from-1].Note); notes > mostNotes/2 {
			break
		}
	}
	if from == 0 {
		return list
	}
	left := oldEntry{
		At: rest[from-1].At, Agent: work.Broker.Name, Revision: rest[from-1].Revision,
		Note: strconv.Itoa(from) + " entries are left out here",
	}
	return slices.Concat(first, []oldEntry{left}, rest[from:])
}

const acknowledgers = `
-- The agents that work on unresolved blockers. An agent has acknowledged a blocker if its entry in the
-- timeline follows the last reopening.
CREATE TABLE blocker_acknowledgers (
	blocker  INTEGER NOT NULL,
	agent    TEXT NOT NULL,
	session  INTEGER NOT NULL,
	revision INTEGER NOT NULL, -- of the acknowledgement
	PRIMARY KEY (blocker, agent)
) WITHOUT ROWID;
CREATE INDEX blocker_acknowledgers_agent ON blocker_acknowledgers (session, agent, blocker);
` + fillAcknowledgers

// fillAcknowledgers fills the table from the timelines of blockers that are older than it.
const fillAcknowledgers = `INSERT INTO blocker_acknowledgers (blocker, agent, session, revision)
SELECT b.id, json_extract(e.value, '$.agent'), b.session, max(json_extract(e.value, '$.revision'))
FROM blockers b, json_each(CASE WHEN json_valid(b.timeline) THEN b.timeline ELSE '[]' END) AS e
WHERE b.state = 2 AND json_extract(e.value, '$.step') = 3 AND e.key > COALESCE((
	SELECT max(r.key) FROM json_each(b.timeline) AS r WHERE json_extract(r.value, '$.step') = 6), -1)
GROUP BY b.id, json_extract(e.value, '$.agent'), b.session;
`
