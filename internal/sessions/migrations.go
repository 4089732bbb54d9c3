package sessions

import (
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/store"
)

// Migrations returns the steps that make the table of sessions and the session "default".
func Migrations() []store.Migration {
	return []store.Migration{{Name: "sessions/001_sessions", SQL: `
CREATE TABLE sessions (
	id            INTEGER PRIMARY KEY,
	name          TEXT NOT NULL UNIQUE,
	description   TEXT NOT NULL,
	created_at    INTEGER NOT NULL,
	ageing        INTEGER NOT NULL, -- nanoseconds
	mailbox_limit INTEGER NOT NULL,
	max_attempts  INTEGER NOT NULL,
	revision      INTEGER NOT NULL  -- of the last change
);
INSERT INTO sessions (id, name, description, created_at, ageing, mailbox_limit, max_attempts, revision)
SELECT 1, 'default', '', created_at, 300000000000, 10000, 3, 0 FROM meta;
`}, {
		Name: "sessions/002_settings", SQL: settingsText, Server: strings.Replace(settingsText, "json_object(", "json_build_object(", 1),
	}, {Name: "sessions/003_settings_message", SQL: `
ALTER TABLE sessions RENAME COLUMN settings TO old_settings;
ALTER TABLE sessions ADD COLUMN settings BLOB NOT NULL DEFAULT ''; -- pb.SessionSettings; what is not set has its default
`, Convert: convert}}
}

const selectOld = `
SELECT id, old_settings FROM sessions`

const updateSettings = `
UPDATE sessions SET settings = ? WHERE id = ?`

// convert makes messages of the JSON texts that the settings were, and drops these.
func convert(d store.Converter) error {
	type row struct {
		id   int64
		text []byte
	}
	all, err := store.Collect(d.Query(selectOld), func(rows *store.Rows) (r row, err error) {
		return r, rows.Scan(&r.id, &r.text)
	})
	for _, r := range all {
		var stored []byte
		if stored, err = proto.Marshal(oldSettings(r.text)); err == nil {
			err = d.Exec(updateSettings, stored, r.id)
		}
		if err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	return d.Exec(`ALTER TABLE sessions DROP COLUMN old_settings`)
}

// oldSettings reads a JSON text. A setting that it lacks is not set, and none is if the text is damaged.
func oldSettings(text []byte) *pb.SessionSettings {
	var old struct {
		Ageing, BreakerTime, ResponseTime, KeepMessages, KeepEvents, KeepDead, StaleAfter, BlockerTime *time.Duration

		MailboxLimit, Artifact, Artifacts                                *int64
		MaxAttempts, SendBurst, MessageLimit, PayloadLimit, BreakerLimit *int32
		SendRate                                                         *float64
		FoldCase                                                         *bool
		UnknownTypes, BadPayloads                                        pb.TypePolicy
		EscalateTo, Directors                                            json.RawMessage // null = no role
	}
	if json.Unmarshal(text, &old) != nil {
		return &pb.SessionSettings{}
	}
	return &pb.SessionSettings{
		Ageing:              oldDuration(old.Ageing),
		MailboxLimit:        old.MailboxLimit,
		MaxAttempts:         old.MaxAttempts,
		SendRate:            old.SendRate,
		SendBurst:           old.SendBurst,
		MessageLimit:        old.MessageLimit,
		PayloadLimit:        old.PayloadLimit,
		BreakerFailures:     old.BreakerLimit,
		BreakerTime:         oldDuration(old.BreakerTime),
		ResponseTime:        oldDuration(old.ResponseTime),
		EscalateTo:          oldNames(old.EscalateTo),
		Directors:           oldNames(old.Directors),
		MessageRetention:    oldDuration(old.KeepMessages),
		EventRetention:      oldDuration(old.KeepEvents),
		DeadLetterRetention: oldDuration(old.KeepDead),
		FoldCase:            old.FoldCase,
		StaleAfter:          oldDuration(old.StaleAfter),
		BlockerEscalation:   oldDuration(old.BlockerTime),
		UnknownTypes:        old.UnknownTypes,
		InvalidPayloads:     old.BadPayloads,
		ArtifactLimit:       old.Artifact,
		ArtifactTotalLimit:  old.Artifacts,
	}
}

func oldDuration(d *time.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(*d)
}

func oldNames(text json.RawMessage) *pb.Names {
	var names []string
	if text == nil || json.Unmarshal(text, &names) != nil {
		return nil
	}
	return &pb.Names{Names: names}
}

const settingsText = `
ALTER TABLE sessions ADD COLUMN settings  TEXT NOT NULL DEFAULT '{}'; -- JSON object; what it does not say has its default
ALTER TABLE sessions ADD COLUMN closed_at INTEGER;
UPDATE sessions SET settings = json_object('Ageing', ageing, 'MailboxLimit', mailbox_limit, 'MaxAttempts', max_attempts);
ALTER TABLE sessions DROP COLUMN ageing;
ALTER TABLE sessions DROP COLUMN mailbox_limit;
ALTER TABLE sessions DROP COLUMN max_attempts;
`
