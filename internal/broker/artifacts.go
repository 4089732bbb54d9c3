package broker

import (
	"errors"

	"brokerd/internal/store"
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

// ArtifactMentions returns which of the texts messages of a session have as an artifact. A message
// counts until it is archived.
func (b *Broker) ArtifactMentions(q store.Querier, session int64, texts []string) (map[string]bool, error) {
	found := map[string]bool{}
	for _, text := range texts {
		var one int
		err := q.QueryRow(selectMessageArtifact, session, text).Scan(&one)
		switch {
		case err == nil:
			found[text] = true
		case !errors.Is(err, store.ErrNoRows):
			return nil, err
		}
	}
	return found, nil
}
