package votes

import (
	"errors"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Migrations returns the steps of the tables of votes, which are those of work.Migrations by now.
func Migrations() []store.Migration {
	return []store.Migration{{Name: "votes/001_votes", SQL: `
CREATE TABLE votes (
	id             INTEGER PRIMARY KEY, -- a number of the counter
	session        INTEGER NOT NULL,
	title          TEXT NOT NULL,
	description    TEXT,
	opener         TEXT NOT NULL,
	rule           INTEGER NOT NULL,
	quorum_ballots INTEGER NOT NULL, -- 0 = quorum_share
	quorum_share   REAL NOT NULL,
	task           TEXT,
	opened_at      INTEGER NOT NULL,
	deadline       INTEGER NOT NULL,
	electors       INTEGER NOT NULL, -- that remain, or have left with a ballot
	ballots        INTEGER NOT NULL,
	outcome        INTEGER NOT NULL, -- 0 = open
	winner         TEXT,
	ending         INTEGER NOT NULL, -- why it closed; 0 = open
	closed_by      TEXT, -- agent or system; NULL = the broker
	close_reason   TEXT,
	closed_at      INTEGER, -- NULL = open
	revision       INTEGER NOT NULL -- of its last change
);
CREATE INDEX votes_session ON votes (session, id);
CREATE INDEX votes_closed ON votes (session, closed_at, id);
CREATE INDEX votes_deadline ON votes (deadline) WHERE closed_at IS NULL;
CREATE INDEX votes_task ON votes (session, task, id) WHERE task IS NOT NULL;

CREATE TABLE vote_options (
	vote     INTEGER NOT NULL,
	position INTEGER NOT NULL, -- from 0
	option   TEXT NOT NULL,
	ballots  INTEGER NOT NULL,
	PRIMARY KEY (vote, position)
) WITHOUT ROWID;

CREATE TABLE vote_electors (
	vote     INTEGER NOT NULL,
	agent    TEXT NOT NULL,
	position INTEGER, -- of its option; NULL = it has not voted
	reason   TEXT,
	cast_at  INTEGER,
	changes  INTEGER NOT NULL,
	departed INTEGER NOT NULL, -- 1 = it has deregistered
	PRIMARY KEY (vote, agent)
) WITHOUT ROWID;
`}, {Name: "votes/002_items", SQL: `
UPDATE work_backlog SET bound = id WHERE feature = 'votes' AND kind = 'leave' AND bound = 0;
UPDATE work_backlog SET feature = 'vote' WHERE feature = 'votes'`, Convert: convert}}
}

const (
	selectOld = `
		SELECT id, session, title, description, opener, rule, quorum_ballots, quorum_share, task, opened_at, deadline,
			electors, ballots, outcome, winner, ending, closed_by, close_reason, closed_at, revision
		FROM votes WHERE id > ? ORDER BY id LIMIT 10`
	selectOldOptions = `
		SELECT option, ballots FROM vote_options WHERE vote = ? ORDER BY position`
	selectOldBallots = `
		SELECT e.agent, o.option, e.reason, e.cast_at, e.changes, e.departed
		FROM vote_electors e LEFT JOIN vote_options o ON o.vote = e.vote AND o.position = e.position
		WHERE e.vote = ?`
)

// convert makes items of the rows of the old tables, and drops these.
func convert(d store.Converter) error {
	err := work.Convert(d, selectOld, kind, func(rows *store.Rows) (work.Old[*pb.Vote], error) { return oldVote(d, rows) })
	if err != nil {
		return err
	}
	return errors.Join(d.Exec(`DROP TABLE votes`), d.Exec(`DROP TABLE vote_options`), d.Exec(`DROP TABLE vote_electors`))
}

// oldVote reads a row of selectOld, with its options and ballots.
func oldVote(d store.Converter, rows *store.Rows) (o work.Old[*pb.Vote], err error) {
	v := &pb.Vote{State: open}
	var opened, deadline, closedAt time.Time
	var rule, outcome, end, ballots int32
	var share float64
	err = rows.Scan(&o.Key, &o.Session, &v.Title, &v.Description, &v.Opener, &rule, &ballots, &share, &v.TaskId, &opened,
		&deadline,
		&v.Electors, &v.Ballots, &outcome, &v.Winner, &end, &v.ClosedBy, &v.CloseReason, &closedAt, &v.Revision)
	if err != nil {
		return o, err
	}
	v.Id, v.Rule = work.ID(kind.Letter, o.Key), pb.VoteRule(rule)
	v.Outcome, v.End = pb.VoteOutcome(outcome), pb.VoteEnd(end)
	v.OpenedAt, v.Deadline, v.ClosedAt = work.Stamp(opened), work.Stamp(deadline), work.Stamp(closedAt)
	if v.ClosedAt != nil {
		v.State = closed
	}
	switch {
	case ballots > 0:
		v.Quorum = &pb.Quorum{Quorum: &pb.Quorum_Ballots{Ballots: ballots}}
	case share > 0:
		v.Quorum = &pb.Quorum{Quorum: &pb.Quorum_Share{Share: share}}
	}
	v.Required = Required(v.Quorum, v.Electors)
	v.Tally, err = store.Collect(d.Query(selectOldOptions, o.Key), func(r *store.Rows) (*pb.VoteTally, error) {
		t := &pb.VoteTally{}
		return t, r.Scan(&t.Option, &t.Ballots)
	})
	if err != nil {
		return o, err
	}
	o.Item = v
	if v.Description != "" {
		o.Part("description", o.Key, &pb.Vote{Description: v.Description})
	}
	electors, err := store.Collect(d.Query(selectOldBallots, o.Key), func(r *store.Rows) (*pb.Ballot, error) {
		b := &pb.Ballot{}
		var cast time.Time
		var departed int
		err := r.Scan(&b.Agent, &b.Option, &b.Reason, &cast, &b.Changes, &departed)
		b.CastAt, b.Left = work.Stamp(cast), departed == 1
		return b, err
	})
	for _, b := range electors {
		o.Part(ballotPart(b.Agent), v.Revision, b)
	}
	return o, err
}
