package broker

import (
	"errors"

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
