package broker

import (
	"errors"

	"github.com/google/uuid"

	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The artifacts that a message names, as its sender wrote them.
const messageArtifacts = `
CREATE TABLE message_artifacts (
	session  INTEGER NOT NULL,
	artifact TEXT    NOT NULL,
	message  INTEGER NOT NULL,
	PRIMARY KEY (session, artifact, message)
) WITHOUT ROWID;
CREATE INDEX message_artifacts_message ON message_artifacts (message);
`

const insertMessageArtifact = `
INSERT INTO message_artifacts (session, artifact, message) VALUES (?, ?, ?)
ON CONFLICT (session, artifact, message) DO NOTHING`

const selectMessageArtifact = `
SELECT 1 FROM message_artifacts WHERE session = ? AND artifact = ? LIMIT 1`

// ArtifactMentions finds which of the texts messages of a session have as an artifact, all in one page. A
// message counts until retention has removed its details.
func ArtifactMentions(q store.Querier, session, _ int64, texts *work.Texts) (last int64, more bool, err error) {
	for _, text := range texts.List() {
		var one int
		err := q.QueryRow(selectMessageArtifact, session, text).Scan(&one)
		switch {
		case err == nil:
			texts.Find(text)
		case !errors.Is(err, store.ErrNoRows):
			return 0, false, err
		}
	}
	return 0, false, nil
}

// A Brief is a message in short.
type Brief struct {
	ID       string
	Revision int64
	Type     string
	Subject  string
}

const selectOfTask = `
	SELECT id, revision, type, content FROM messages WHERE task = ? AND session = ? ORDER BY revision DESC LIMIT ?`

// OfTask returns the newest messages of a session that carry the id of a task, at most limit.
func OfTask(q store.Querier, session int64, task string, limit int) ([]Brief, error) {
	var found []Brief
	rows := q.Query(selectOfTask, task, session, limit)
	defer rows.Close()
	for rows.Next() {
		var m Brief
		var id, content []byte
		if err := rows.Scan(&id, &m.Revision, &m.Type, &content); err != nil {
			return nil, err
		}
		m.ID, m.Subject = uuid.UUID(id).String(), Title(content)
		found = append(found, m)
	}
	return found, rows.Err()
}
