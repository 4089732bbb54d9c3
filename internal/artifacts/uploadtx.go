package artifacts

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/store"
)

// An uploadTx is the transaction that stores the version of an upload.
type uploadTx struct {
	*Upload
	tx      *store.Tx
	session directory.Session
	agent   directory.Agent
}

// run reads first, then writes.
func (t *uploadTx) run(known bool) (Stored, error) {
	h := &t.header
	has, err := t.admit(t.tx, t.session, h.SHA256, h.Size, t.underWay(t.session.ID)-t.reservation())
	if err != nil {
		return Stored{}, err
	}
	if known && !has {
		return Stored{}, errUnknownContent
	}
	newest, found, err := newestOf(t.tx, t.session.ID, h.Name)
	if err != nil {
		return Stored{}, err
	}
	if found && newest.SHA256 == h.SHA256 {
		return Stored{Version: newest, Unchanged: true}, t.announce(&newest)
	}
	last, exists, err := lastOf(t.tx, t.session.ID, h.Name)
	if err != nil {
		return Stored{}, err
	}
	if err := t.admitCount(exists); err != nil {
		return Stored{}, err
	}
	v := Version{
		Name: h.Name, Number: last + 1, SHA256: h.SHA256, Size: h.Size, MediaType: h.MediaType, Description: h.Description,
		Labels: h.Labels, TaskID: h.TaskID, Author: t.agent.Name, CreatedAt: t.tx.Now().UTC(),
	}
	if v.Revision, err = t.append("artifact.uploaded", &v); err != nil {
		return Stored{}, err
	}
	if err := t.insert(&v, exists, has); err != nil {
		return Stored{}, fmt.Errorf("add version: %w", err)
	}
	return Stored{Version: v}, t.announce(&v)
}

// reservation returns how many bytes of the uploads under way are those of this upload.
func (t *uploadTx) reservation() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reserved {
		return t.header.Size
	}
	return 0
}

// admitCount checks how many artifacts and versions the session has.
func (t *uploadTx) admitCount(exists bool) error {
	u, err := usageOf(t.tx, t.session.ID)
	switch {
	case err != nil:
		return err
	case u.versions >= maxVersions:
		return full("TOO_MANY_ARTIFACTS", "versions", maxVersions,
			"this session has %d versions of artifacts, which is its limit: delete old ones first", u.versions)
	case !exists && u.names >= maxNames:
		return full("TOO_MANY_ARTIFACTS", "names", maxNames, "this session has %d artifacts, which is its limit: delete some first", u.names)
	}
	return nil
}

func (t *uploadTx) insert(v *Version, exists, has bool) error {
	labels, err := labelsText(v.Labels)
	if err != nil {
		return err
	}
	session, names, bytes := t.session.ID, 1, v.Size
	if exists {
		names = 0
	}
	if has {
		bytes = 0
	}
	t.tx.Exec(replaceNewest, v.CreatedAt, session, v.Name)
	t.tx.Exec(insertVersion, session, v.Name, v.Number, v.Revision, v.SHA256, v.Size, v.MediaType, v.Description,
		labels, orNull(v.TaskID), v.Author, v.CreatedAt)
	t.tx.Exec(putArtifact, session, v.Name, v.Number)
	t.tx.Exec(addContent, session, v.SHA256, v.Size)
	t.tx.Exec(addUsage, session, names, 1, bytes)
	t.tx.OnCommit(t.release) // from here on, the usage includes the content
	return nil
}

// announce publishes the version, if the upload asks for it.
func (t *uploadTx) announce(v *Version) error {
	if !t.header.Announce {
		return nil
	}
	_, err := t.append("artifact_shared", v)
	return err
}

// append adds an event about a version to the log.
func (t *uploadTx) append(kind string, v *Version) (int64, error) {
	details, err := json.Marshal(struct {
		Name        string `json:"name"`
		Version     int64  `json:"version"`
		Size        int64  `json:"size"`
		SHA256      string `json:"sha256"`
		MediaType   string `json:"media_type"`
		Description string `json:"description"`
	}{v.Name, v.Number, v.Size, v.SHA256, v.MediaType, v.Description})
	if err != nil {
		return 0, err
	}
	return t.Log.Append(t.tx, events.Entry{
		Session: t.session.ID, Category: events.Work, Type: kind, Source: t.agent.Name, SourceRole: t.agent.Role,
		Summary: fmt.Sprintf("%s version %d", shortName(v.Name), v.Number), Details: string(details), TaskID: v.TaskID,
	})
}

// lastOf returns the highest version number that a name has had.
func lastOf(q store.Querier, session int64, name string) (last int64, exists bool, err error) {
	rows := q.Query(selectArtifact, session, name)
	defer rows.Close()
	if !rows.Next() {
		return 0, false, rows.Err()
	}
	err = rows.Scan(&last)
	return last, err == nil, err
}

func labelsText(labels map[string]string) (any, error) {
	if len(labels) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(labels)
	return string(text), err
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// shortName shortens a name for the summary of an event: the end of a path says most.
func shortName(name string) string {
	const most = 200
	if len(name) <= most {
		return name
	}
	cut := len(name) - most
	for !utf8.RuneStart(name[cut]) {
		cut++
	}
	return "…" + name[cut:]
}
