package artifacts

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const (
	// keepNumbers is how long the numbers of a name stay used after its last version was deleted.
	keepNumbers = 30 * 24 * time.Hour
	// forgetAtOnce is how many such names one deletion forgets.
	forgetAtOnce = 10
)

// add stores the version of an upload. It reads first, then writes. If known is set, the session must have
// the content. unchanged is true if the newest version already has it.
func (u *upload) add(t *work.Tx, known bool) (v *pb.ArtifactVersion, unchanged bool, err error) {
	h := u.header
	has, err := u.admit(t, t.Session, h.Sha256, h.Size, u.underWay(t.Session.ID)-u.reservation())
	if err != nil {
		return nil, false, err
	}
	if known && !has {
		return nil, false, errUnknownContent
	}
	newest, found, err := newestOf(t, t.Session.ID, h.Name)
	if err != nil {
		return nil, false, err
	}
	if found && newest.Sha256 == h.Sha256 {
		return newest, true, u.announce(t, newest)
	}
	last := int64(0)
	err = t.QueryRow(selectArtifact, t.Session.ID, h.Name).Scan(&last)
	exists := err == nil
	if err != nil && !errors.Is(err, store.ErrNoRows) {
		return nil, false, err
	}
	if err := admitCount(t, t.Session.ID, exists); err != nil {
		return nil, false, err
	}
	v = &pb.ArtifactVersion{
		Name: h.Name, Version: last + 1, Sha256: h.Sha256, Size: h.Size, MediaType: h.MediaType, Description: h.Description,
		Labels: h.Labels, TaskId: h.TaskId, Author: t.Actor.Name, CreatedAt: work.Stamp(t.Now()), Newest: true,
	}
	if v.Revision, err = u.append(t, "artifact.uploaded", v); err != nil {
		return nil, false, err
	}
	if err := u.insert(t, v, exists, has); err != nil {
		return nil, false, fmt.Errorf("add version: %w", err)
	}
	return v, false, u.announce(t, v)
}

// admitCount checks how many artifacts and versions a session has.
func admitCount(q store.Querier, session int64, exists bool) error {
	sums, err := usageOf(q, session)
	switch {
	case err != nil:
		return err
	case sums.versions >= maxVersions:
		return full("TOO_MANY_ARTIFACTS", "versions", maxVersions,
			"this session has %d versions of artifacts, which is its limit: delete old ones first", sums.versions)
	case !exists && sums.names >= maxNames:
		return full("TOO_MANY_ARTIFACTS", "names", maxNames,
			"this session has %d artifacts, which is its limit: delete some first", sums.names)
	}
	return nil
}

func (u *upload) insert(t *work.Tx, v *pb.ArtifactVersion, exists, has bool) error {
	var labels any // NULL = none
	if len(v.Labels) > 0 {
		text, err := json.Marshal(v.Labels)
		if err != nil {
			return err
		}
		labels = string(text)
	}
	var task any
	if v.TaskId != "" {
		task = v.TaskId
	}
	session, names, bytes := t.Session.ID, 1, v.Size
	if exists {
		names = 0
	}
	if has {
		bytes = 0
	}
	t.Exec(replaceNewest, t.Now(), session, v.Name)
	t.Exec(insertVersion, session, v.Name, v.Version, v.Revision, v.Sha256, v.Size, v.MediaType, v.Description,
		labels, task, v.Author, t.Now())
	t.Exec(putArtifact, session, v.Name, v.Version)
	t.Exec(addContent, session, v.Sha256, v.Size)
	t.Exec(addUsage, session, names, 1, bytes)
	t.OnCommit(u.release) // from here on, the usage includes the content
	return nil
}

// announce publishes the version, if the upload asks for it.
func (u *upload) announce(t *work.Tx, v *pb.ArtifactVersion) error {
	if !u.header.Announce {
		return nil
	}
	_, err := u.append(t, "artifact_shared", v)
	return err
}

// append adds an event about a version to the log.
func (u *upload) append(t *work.Tx, kind string, v *pb.ArtifactVersion) (int64, error) {
	return u.AppendEvent(t, work.Subject{Task: v.TaskId}, work.Event{
		Type: kind, Summary: fmt.Sprintf("%s version %d", shortName(v.Name), v.Version),
		Details: map[string]any{
			"name": v.Name, "version": v.Version, "size": v.Size, "sha256": v.Sha256, "media_type": v.MediaType,
			"description": v.Description,
		},
	})
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

// A loss is how many versions of a content are removed.
type loss struct {
	sum      string
	size     int64
	versions int64
	last     bool // the session has no other version of the content
}

// delete removes a version, or all versions of a name for 0. Errors: fault.NotFound; fault.Denied
// (NOT_THE_AUTHOR).
func (s *Service) delete(t *work.Tx, name string, number int64) (d deleted, err error) {
	session := t.Session.ID
	if _, err := find(t, session, name, number); err != nil {
		return d, err
	}
	losses, err := removed(t, name, number)
	if err != nil {
		return d, err
	}
	for _, l := range losses {
		d.Versions += l.versions
		if l.last {
			d.Freed += l.size
		}
	}
	summary := shortName(name)
	if number > 0 {
		summary = fmt.Sprintf("%s version %d", summary, number)
	}
	d.Revision, err = s.AppendEvent(t, work.Subject{}, work.Event{
		Type: "artifact.deleted", Summary: summary, Details: map[string]any{
			"name": name, "version": number, "versions": d.Versions, "freed_bytes": d.Freed, // version 0 = all
		},
	})
	if err != nil {
		return d, err
	}
	t.Exec(deleteVersions, session, name, number, number)
	s.settle(t.Tx, session, losses)
	if err := promote(t, name); err != nil {
		return d, err
	}
	s.CountOutcome(t, noun, "deleted")
	return d, forget(t)
}

// removed returns what removing versions of a name takes from the session. Errors: fault.Denied
// (NOT_THE_AUTHOR).
func removed(t *work.Tx, name string, number int64) ([]loss, error) {
	author := ""
	rows := t.Query(groupDeleted, t.Session.ID, name, number, number)
	losses, err := store.Collect(rows, func(r *store.Rows) (l loss, err error) {
		var first, last string
		err = r.Scan(&l.sum, &l.size, &l.versions, &first, &last)
		for _, by := range []string{first, last} {
			if by != t.Actor.Name {
				author = by
			}
		}
		return l, err
	})
	if err == nil && author != "" && !t.Actor.Directs(t.Session) {
		err = fault.New(fault.Denied, "NOT_THE_AUTHOR", "%s has uploaded a version of %q: only it, the session's directors "+
			"and operators may delete that version", author, name).With("author", author)
	}
	if err != nil {
		return nil, err
	}
	return losses, findLast(t, t.Session.ID, losses)
}

// findLast notes which contents the session loses.
func findLast(q store.Querier, session int64, losses []loss) error {
	for i := range losses {
		l := &losses[i]
		var size, versions int64
		if err := q.QueryRow(selectContent, session, l.sum).Scan(&size, &versions); err != nil {
			return err
		}
		l.last = versions == l.versions
	}
	return nil
}

// settle updates contents and sums after versions were removed.
func (s *Service) settle(tx *store.Tx, session int64, losses []loss) {
	var lost []string
	var versions, freed int64
	for _, l := range losses {
		versions += l.versions
		if l.last {
			lost, freed = append(lost, l.sum), freed+l.size
			tx.Exec(deleteContent, session, l.sum)
		} else {
			tx.Exec(dropContent, l.versions, session, l.sum)
		}
	}
	s.drop(tx, lost)
	tx.Exec(addUsage, session, 0, -versions, -freed)
}

// promote makes the highest version that is left the newest, or marks the name as deleted.
func promote(t *work.Tx, name string) error {
	var highest int64
	err := t.QueryRow(highestVersion, t.Session.ID, name).Scan(&highest)
	if errors.Is(err, store.ErrNoRows) {
		t.Exec(markDeleted, t.Now(), t.Session.ID, name)
		return nil
	}
	if err != nil {
		return err
	}
	t.Exec(makeNewest, t.Session.ID, name, highest)
	return nil
}

// forget removes some names whose versions were all deleted long ago.
func forget(t *work.Tx) error {
	n, err := t.ExecCount(forgetDeleted, t.Session.ID, t.Session.ID, t.Now().Add(-keepNumbers), forgetAtOnce)
	if err == nil && n > 0 {
		t.Exec(addUsage, t.Session.ID, -n, 0, 0)
	}
	return err
}
