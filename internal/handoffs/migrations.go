package handoffs

import (
	"encoding/json"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Migrations returns the steps of the tables of handoffs, which are work.Migrations by now.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "handoffs/001_handoffs", SQL: `
CREATE TABLE handoffs (
	id         INTEGER PRIMARY KEY, -- the revision that created it
	session    INTEGER NOT NULL,
	revision   INTEGER NOT NULL,
	state      INTEGER NOT NULL, -- 1 = pending
	title      TEXT NOT NULL,
	task_id    TEXT NOT NULL,
	sender     TEXT NOT NULL,
	to_agent   TEXT NOT NULL,
	to_role    TEXT NOT NULL,
	items      INTEGER NOT NULL, -- of the checklist
	checked    INTEGER NOT NULL, -- of the items
	created_at INTEGER NOT NULL,
	settled_at INTEGER,
	settled_by TEXT NOT NULL,
	notes      TEXT NOT NULL,
	content    TEXT NOT NULL, -- JSON object
	checklist  TEXT NOT NULL, -- JSON list
	grants     TEXT NOT NULL -- JSON list
);
CREATE INDEX handoffs_session ON handoffs (session, id);
CREATE INDEX handoffs_pending ON handoffs (session, id) WHERE state = 1;
CREATE INDEX handoffs_task ON handoffs (session, task_id, id) WHERE task_id <> '';
CREATE INDEX handoffs_settled ON handoffs (session, settled_at) WHERE settled_at IS NOT NULL;
`}, {Name: "handoffs/002_items", SQL: `
UPDATE work_backlog SET feature = 'handoff' WHERE feature = 'handoffs'`, Convert: convert}}
}

const selectOld = `
SELECT id, session, revision, state, title, task_id, sender, to_agent, to_role, items, checked,
       created_at, settled_at, settled_by, notes, content, checklist, grants
FROM handoffs WHERE id > ? ORDER BY id LIMIT 20`

// convert makes items of the rows of the table handoffs, and drops it.
func convert(d store.Converter) error {
	if err := work.Convert(d, selectOld, kind, oldHandoff); err != nil {
		return err
	}
	return d.Exec(`DROP TABLE handoffs`)
}

// An old handoff has its lists as JSON.
type oldContent struct {
	Background    string   `json:"background"`
	WorkDone      string   `json:"work_done"`
	Artifacts     []string `json:"artifacts"`
	NextSteps     []string `json:"next_steps"`
	KnownIssues   []string `json:"known_issues"`
	OpenQuestions []string `json:"open_questions"`
	Links         []struct {
		Kind          pb.ContextLinkKind
		Target, Title string
	} `json:"context_links"`
}

type oldItem struct {
	Text      string    `json:"text"`
	CheckedBy string    `json:"checked_by"`
	CheckedAt time.Time `json:"checked_at"`
}

type oldGrant struct {
	Kind  pb.GrantKind `json:"kind"`
	Name  string       `json:"name"`
	Fence int64        `json:"fence"`
	New   int64        `json:"new_fence"`
	Lost  bool         `json:"lost"`
}

// oldHandoff reads a row of selectOld. A column that is damaged becomes text of the background.
func oldHandoff(rows *store.Rows) (o work.Old[*pb.Handoff], err error) {
	h := &pb.Handoff{}
	var created, settled time.Time
	var state int32
	var content, checklist, grants []byte
	err = rows.Scan(&o.Key, &o.Session, &h.Revision, &state, &h.Title, &h.TaskId, &h.From, &h.ToAgent, &h.ToRole,
		&h.Items, &h.Checked,
		&created, &settled, &h.SettledBy, &h.Notes, &content, &checklist, &grants)
	if err != nil {
		return o, err
	}
	h.Id, h.State = work.ID(kind.Letter, o.Key), pb.HandoffState(state)
	h.CreatedAt, h.SettledAt = work.Stamp(created), work.Stamp(settled)
	var c oldContent
	var items []oldItem
	var held []oldGrant
	h.Content = &pb.HandoffContent{}
	for _, column := range []struct {
		text []byte
		to   any
	}{{content, &c}, {checklist, &items}, {grants, &held}} {
		if err := json.Unmarshal(column.text, column.to); err != nil {
			h.Content.Background += string(column.text) + "\n"
		}
	}
	h.Content.Background += c.Background
	h.Content.WorkDone, h.Content.Artifacts = c.WorkDone, c.Artifacts
	h.Content.NextSteps, h.Content.KnownIssues, h.Content.OpenQuestions = c.NextSteps, c.KnownIssues, c.OpenQuestions
	for _, l := range c.Links {
		link := &pb.ContextLink{Kind: l.Kind, Target: l.Target, Title: l.Title}
		h.Content.ContextLinks = append(h.Content.ContextLinks, link)
	}
	for i, item := range items {
		h.Checklist = append(h.Checklist, &pb.ChecklistItem{
			Number: int32(i + 1), Text: item.Text, Checked: item.CheckedBy != "", CheckedBy: item.CheckedBy,
			CheckedAt: work.Stamp(item.CheckedAt),
		})
	}
	for _, g := range held {
		grant := &pb.HandoffGrant{Kind: g.Kind, Name: g.Name, Fence: g.Fence, NewFence: g.New, Lost: g.Lost}
		h.Grants = append(h.Grants, grant)
	}
	o.Item = h
	o.Part("content", o.Key, &pb.Handoff{Content: h.Content})
	if len(h.Checklist) > 0 {
		o.Part("checklist", o.Key, &pb.Handoff{Checklist: h.Checklist})
	}
	return o, nil
}
