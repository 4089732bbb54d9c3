package artifacts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// A record is a version as exports and archives have it.
type record struct {
	Name        string            `json:"name"`
	Version     int64             `json:"version"`
	Revision    int64             `json:"revision"`
	SHA256      string            `json:"sha256"` // in an export, the content is the file artifacts/SHA256
	Size        int64             `json:"size"`
	MediaType   string            `json:"media_type"`
	Description string            `json:"description"`
	Labels      map[string]string `json:"labels"`
	TaskID      string            `json:"task_id"`
	Author      string            `json:"author"`
	CreatedAt   time.Time         `json:"created_at"`
	ReplacedAt  *time.Time        `json:"replaced_at"` // null for the newest version
}

func line(v *Version) ([]byte, error) {
	r := record{
		Name: v.Name, Version: v.Number, Revision: v.Revision, SHA256: v.SHA256, Size: v.Size, MediaType: v.MediaType,
		Description: v.Description, Labels: v.Labels, TaskID: v.TaskID, Author: v.Author, CreatedAt: v.CreatedAt,
	}
	if !v.Newest() {
		r.ReplacedAt = &v.ReplacedAt
	}
	return json.Marshal(r)
}

// Records returns the versions of a session after a position, each as one line of JSON, by name and
// version, and the position of the last one.
func (r *Repository) Records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	var from Position
	if after != "" {
		if err := json.Unmarshal([]byte(after), &from); err != nil {
			return nil, "", err
		}
	}
	rows := q.Query(everyVersion, session, from.Name, from.Name, from.Version, limit)
	defer rows.Close()
	for rows.Next() {
		v, err := scanVersion(rows)
		if err != nil {
			return nil, "", err
		}
		text, err := line(&v)
		if err != nil {
			return nil, "", err
		}
		lines, from = append(lines, text), Position{v.Name, v.Number}
	}
	if err := rows.Err(); err != nil {
		return nil, "", err
	}
	position, err := json.Marshal(from)
	return lines, string(position), err
}

// Contents passes the contents of a session to a function, in the order of their hashes: the name of
// a file of the export, and what it contains. Contents that the session loses meanwhile may be left
// out. Errors: fault.Precondition (CONTENT_MISSING).
func (r *Repository) Contents(ctx context.Context, session int64, to func(file string, content io.Reader) error) error {
	for after := ""; ; {
		sums, err := r.someContents(ctx, session, after)
		if err != nil || len(sums) == 0 {
			return err
		}
		for _, sum := range sums {
			if err := r.content(ctx, session, sum, to); err != nil {
				return err
			}
		}
		after = sums[len(sums)-1]
	}
}

// someContents returns a page of the hashes of a session's contents.
func (r *Repository) someContents(ctx context.Context, session int64, after string) (sums []string, err error) {
	err = r.Store.Read(ctx, func(snap *store.Snapshot) error {
		sums, err = contentsAfter(snap, session, after, pageFiles)
		return err
	})
	return sums, err
}

func contentsAfter(q store.Querier, session int64, after string, limit int) (sums []string, err error) {
	rows := q.Query(everyContent, session, after, limit)
	defer rows.Close()
	for rows.Next() {
		var sum string
		if err := rows.Scan(&sum); err != nil {
			return nil, err
		}
		sums = append(sums, sum)
	}
	return sums, rows.Err()
}

func (r *Repository) content(ctx context.Context, session int64, sum string, to func(file string, content io.Reader) error) error {
	file, err := r.folder.open(sum)
	if errors.Is(err, fs.ErrNotExist) {
		return r.Store.Read(ctx, func(snap *store.Snapshot) error {
			var size, versions int64
			err := snap.QueryRow(selectContent, session, sum).Scan(&size, &versions)
			if errors.Is(err, store.ErrNoRows) {
				return nil
			}
			return errors.Join(err, fault.New(fault.Precondition, "CONTENT_MISSING",
				"the file %s/%s is missing in the data folder, and without it the export would not be complete: restore it from a backup", Folder, sum))
		})
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it is only read
	return to(Folder+"/"+sum, file)
}

// A Mentions function finds which of the texts live data of a session names, in a page of the data after
// a key. A text is the name of an artifact, a name with a version, such as api.yaml@3, or the hash of a
// content. It returns the key after which the next page begins, and whether there may be one.
type Mentions func(q store.Querier, session, after int64, texts *work.Texts) (last int64, more bool, err error)

// Replaced returns versions that were replaced at or before a time and that no live data names, the
// oldest end first, at most limit. Each page of the data that may name them is a read of its own, so the
// session may have any amount. If it returns none, next is when the next version was replaced; zero if
// there is none.
func (r *Repository) Replaced(ctx context.Context, session int64, before time.Time, limit int) (found []work.Done, next time.Time, err error) {
	at, revision := time.Unix(0, 0), int64(0) // the position
	for len(found) == 0 {
		var page []Version
		err := r.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
			if page, err = replacedAfter(snap, session, before, at, revision); err != nil || len(page) > 0 {
				return err
			}
			err = snap.QueryRow(nextReplaced, session, before).Scan(&next)
			if errors.Is(err, store.ErrNoRows) {
				err = nil
			}
			return err
		})
		if err != nil || len(page) == 0 {
			return nil, next, err
		}
		last := &page[len(page)-1]
		at, revision = last.ReplacedAt, last.Revision
		named, err := r.named(ctx, session, page)
		if err != nil {
			return nil, next, err
		}
		for i := range page {
			v := &page[i]
			if len(found) == limit || slices.ContainsFunc(references(v), func(text string) bool { return named[text] }) {
				continue
			}
			text, err := line(v)
			if err != nil {
				return nil, next, err
			}
			found = append(found, work.Done{Key: v.Revision, At: v.ReplacedAt, Line: text})
		}
	}
	return found, next, nil
}

// replacedAtOnce is how many versions one search through the data that may name them covers.
const replacedAtOnce = 100

func replacedAfter(q store.Querier, session int64, before, at time.Time, revision int64) (page []Version, err error) {
	rows := q.Query(selectReplaced, session, before, at, revision, replacedAtOnce)
	defer rows.Close()
	for rows.Next() {
		v, err := scanVersion(rows)
		if err != nil {
			return nil, err
		}
		page = append(page, v)
	}
	return page, rows.Err()
}

// references returns the texts that name a version.
func references(v *Version) []string {
	return []string{v.Name, fmt.Sprintf("%s@%d", v.Name, v.Number), v.SHA256}
}

// textsOf returns the texts that name some of the versions, each once.
func textsOf(page []Version) *work.Texts {
	var texts []string
	for i := range page {
		texts = append(texts, references(&page[i])...)
	}
	slices.Sort(texts)
	return work.NewTexts(slices.Compact(texts))
}

// named returns the references to versions that live data has. It notes how far it has read, so that
// Remove can search what is newer.
func (r *Repository) named(ctx context.Context, session int64, page []Version) (map[string]bool, error) {
	texts, read := textsOf(page), make([]int64, len(r.mentions))
	for i, mentions := range r.mentions {
		for more := true; more; {
			err := r.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
				read[i], more, err = mentions(snap, session, read[i], texts)
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read[session] = read
	return texts.Found(), nil
}

// unnamed reports whether no data that is newer than the last search in its session names one of the
// versions. Data of which there is more than a page counts as if it did.
func (r *Repository) unnamed(tx *store.Tx, session int64, page []Version) (bool, error) {
	r.mu.Lock()
	read := r.read[session]
	r.mu.Unlock()
	texts := textsOf(page)
	for i, mentions := range r.mentions {
		if i >= len(read) { // no search since the start
			return false, nil
		}
		if _, more, err := mentions(tx, session, read[i], texts); more || err != nil {
			return false, err
		}
	}
	return len(texts.Found()) == 0, nil
}

// Remove removes versions that Replaced has returned. Errors: fault.Conflict if one of them has been
// deleted, or is the newest, meanwhile, or if newer data names one of them.
func (r *Repository) Remove(tx *store.Tx, session int64, revisions []int64) error {
	t := removeTx{Repository: r, tx: tx, session: session}
	bySum := map[string]*loss{}
	versions := make([]Version, 0, len(revisions))
	for _, revision := range revisions {
		v, found, err := oneVersion(tx.Query(selectRevision, revision, session))
		if err != nil {
			return err
		}
		if !found || v.Newest() {
			return fault.New(fault.Conflict, "CHANGED", "a version that was to be removed has changed")
		}
		if bySum[v.SHA256] == nil {
			bySum[v.SHA256] = &loss{sum: v.SHA256, size: v.Size}
		}
		bySum[v.SHA256].versions++
		versions = append(versions, v)
	}
	if free, err := r.unnamed(tx, session, versions); err != nil {
		return err
	} else if !free {
		return fault.New(fault.Conflict, "CHANGED", "a version that was to be removed is named by now")
	}
	losses := make([]loss, 0, len(bySum))
	for _, l := range bySum {
		losses = append(losses, *l)
	}
	slices.SortFunc(losses, func(a, b loss) int { return strings.Compare(a.sum, b.sum) })
	if err := t.findLast(losses); err != nil {
		return err
	}
	var freed int64
	for _, l := range losses {
		if l.last {
			freed += l.size
		}
	}
	for _, revision := range revisions {
		tx.Exec(deleteVersion, revision)
	}
	t.settle(losses, int64(len(revisions)), freed)
	return nil
}

// Erase removes some of the versions, or after them of the contents, or after these of the names,
// of a session that is being deleted. It reports whether there may be more.
func (r *Repository) Erase(tx *store.Tx, session int64, limit int) (more bool, err error) {
	revisions, err := revisionsOf(tx, session, limit)
	if err != nil {
		return false, err
	}
	for _, revision := range revisions {
		tx.Exec(deleteVersion, revision)
	}
	if len(revisions) > 0 {
		return true, nil
	}
	sums, err := contentsAfter(tx, session, "", limit)
	if err != nil {
		return false, err
	}
	if len(sums) == 0 {
		left, err := tx.ExecPage(limit, []string{deleteSomeArtifacts}, session)
		return left == 0, err
	}
	r.drop(tx, sums)
	tx.Exec(deleteContents, session, sums[len(sums)-1])
	return true, nil
}

func revisionsOf(tx *store.Tx, session int64, limit int) (revisions []int64, err error) {
	rows := tx.Query(someVersions, session, limit)
	defer rows.Close()
	for rows.Next() {
		var revision int64
		if err := rows.Scan(&revision); err != nil {
			return nil, err
		}
		revisions = append(revisions, revision)
	}
	return revisions, rows.Err()
}

// Forget removes the sums of a session without artifacts.
func (r *Repository) Forget(tx *store.Tx, session int64) {
	tx.Exec(deleteUsage, session)
}
