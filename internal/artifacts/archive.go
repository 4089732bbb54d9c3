package artifacts

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"slices"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Records returns the versions of a session after a position, each as one line of JSON, by name and
// version, and the position of the last one.
func (s *Service) Records(
	q store.Querier, session int64, after string, limit int,
) (lines [][]byte, last string, err error) {
	var from position
	if after != "" {
		if err := json.Unmarshal([]byte(after), &from); err != nil {
			return nil, "", err
		}
	}
	page, err := versions(q.Query(everyVersion, session, from.Name, from.Name, from.Version, limit))
	if err != nil {
		return nil, "", err
	}
	for _, v := range page {
		text, err := line(v)
		if err != nil {
			return nil, "", err
		}
		lines, from = append(lines, text), position{v.Name, v.Version}
	}
	text, err := json.Marshal(from)
	return lines, string(text), err
}

// Contents passes the contents of a session to a function, in the order of their hashes: the name of
// a file of the export, and what it contains. Contents that the session loses meanwhile may be left
// out. Errors: fault.Precondition (CONTENT_MISSING).
func (s *Service) Contents(ctx context.Context, session int64, to func(file string, content io.Reader) error) error {
	for after := ""; ; {
		sums, err := s.someContents(ctx, session, after)
		if err != nil || len(sums) == 0 {
			return err
		}
		for _, sum := range sums {
			if err := s.content(ctx, session, sum, to); err != nil {
				return err
			}
		}
		after = sums[len(sums)-1]
	}
}

// someContents returns a page of the hashes of a session's contents.
func (s *Service) someContents(ctx context.Context, session int64, after string) (sums []string, err error) {
	err = s.Store.Read(ctx, func(snap *store.Snapshot) error {
		sums, err = names(snap.Query(everyContent, session, after, pageNames))
		return err
	})
	return sums, err
}

func (s *Service) content(
	ctx context.Context, session int64, sum string, to func(file string, content io.Reader) error,
) error {
	content, err := s.open(ctx, sum)
	if errors.Is(err, fs.ErrNotExist) {
		return s.Store.Read(ctx, func(snap *store.Snapshot) error {
			var size, versions int64
			err := snap.QueryRow(selectContent, session, sum).Scan(&size, &versions)
			if errors.Is(err, store.ErrNoRows) {
				return nil
			}
			return errors.Join(err, fault.New(fault.Precondition, "CONTENT_MISSING",
				"the content %s of an artifact is missing, and without it the export would not be complete: restore it from a "+
					"backup", sum))
		})
	}
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }() // it is only read
	return to(Folder+"/"+sum, io.NewSectionReader(content, 0, content.Size()))
}

// A Mentions function finds which of the texts live data of a session names, in a page of the data after
// a key. A text is the name of an artifact, a name with a version, such as api.yaml@3, or the hash of a
// content. It returns the key after which the next page begins, and whether there may be one.
type Mentions func(q store.Querier, session, after int64, texts *work.Texts) (last int64, more bool, err error)

// Replaced returns versions that were replaced at or before a time and that no live data names, the
// oldest end first, at most limit. Each page of the data that may name them is a separate read, so the
// session may have any amount. If it returns none, next is when the next version was replaced; zero if
// there is none.
func (s *Service) Replaced(
	ctx context.Context, session int64, before time.Time, limit int,
) (found []work.Done, next time.Time, err error) {
	at, revision := time.Unix(0, 0), int64(0) // the position
	for len(found) == 0 {
		var page []*pb.ArtifactVersion
		err := s.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
			page, err = versions(snap.Query(selectReplaced, session, before, at, revision, replacedAtOnce))
			if err != nil || len(page) > 0 {
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
		last := page[len(page)-1]
		at, revision = last.ReplacedAt.AsTime(), last.Revision
		named, err := s.named(ctx, session, page)
		if err != nil {
			return nil, next, err
		}
		for _, v := range page {
			if len(found) == limit || slices.ContainsFunc(references(v), func(text string) bool { return named[text] }) {
				continue
			}
			text, err := line(v)
			if err != nil {
				return nil, next, err
			}
			found = append(found, work.Done{Key: v.Revision, At: v.ReplacedAt.AsTime(), Line: text})
		}
	}
	return found, next, nil
}

// replacedAtOnce is how many versions one search through the data that may name them covers.
const replacedAtOnce = 100

// references returns the texts that name a version.
func references(v *pb.ArtifactVersion) []string {
	return []string{v.Name, nameOf(v), v.Sha256}
}

// textsOf returns the texts that name some of the versions, each once.
func textsOf(page []*pb.ArtifactVersion) *work.Texts {
	var texts []string
	for _, v := range page {
		texts = append(texts, references(v)...)
	}
	slices.Sort(texts)
	return work.NewTexts(slices.Compact(texts))
}

// named returns the references to versions that live data has. It notes how far it has read, so that
// Remove can search what is newer.
func (s *Service) named(ctx context.Context, session int64, page []*pb.ArtifactVersion) (map[string]bool, error) {
	texts, read := textsOf(page), make([]int64, len(s.mentions))
	for i, mentions := range s.mentions {
		for more := true; more; {
			err := s.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
				read[i], more, err = mentions(snap, session, read[i], texts)
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read[session] = read
	return texts.Found(), nil
}

// unnamed reports whether no data that is newer than the last search in its session names one of the
// versions. Data of which there is more than a page counts as if it did.
func (s *Service) unnamed(tx *store.Tx, session int64, page []*pb.ArtifactVersion) (bool, error) {
	s.mu.Lock()
	read := s.read[session]
	s.mu.Unlock()
	texts := textsOf(page)
	for i, mentions := range s.mentions {
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
func (s *Service) Remove(tx *store.Tx, session int64, done []work.Done) error {
	page := make([]*pb.ArtifactVersion, len(done))
	losses := map[string]*loss{}
	for i, d := range done {
		v, found, err := oneVersion(tx.Query(selectRevision, d.Key))
		if err != nil {
			return err
		}
		if !found || v.Newest {
			return fault.New(fault.Conflict, "CHANGED", "a version that was to be removed has changed")
		}
		if losses[v.Sha256] == nil {
			losses[v.Sha256] = &loss{sum: v.Sha256, size: v.Size}
		}
		losses[v.Sha256].versions++
		page[i] = v
	}
	if free, err := s.unnamed(tx, session, page); err != nil {
		return err
	} else if !free {
		return fault.New(fault.Conflict, "CHANGED", "a version that was to be removed is named by now")
	}
	list := make([]loss, 0, len(losses))
	for _, sum := range slices.Sorted(maps.Keys(losses)) {
		list = append(list, *losses[sum])
	}
	if err := findLast(tx, session, list); err != nil {
		return err
	}
	for _, d := range done {
		tx.Exec(deleteVersion, d.Key)
	}
	s.settle(tx, session, list)
	return nil
}

// Erase removes some of the versions, or after them of the contents, or after these of the names,
// of a session that is being deleted. It reports whether there may be more.
func (s *Service) Erase(tx *store.Tx, session int64, limit int) (more bool, err error) {
	n, err := tx.ExecCount(deleteSomeVersions, session, limit)
	if err != nil || n > 0 {
		return true, err
	}
	sums, err := names(tx.Query(everyContent, session, "", limit))
	if err != nil {
		return false, err
	}
	if len(sums) == 0 {
		left, err := tx.ExecPage(limit, []string{deleteSomeArtifacts}, session)
		return left == 0, err
	}
	s.drop(tx, sums)
	tx.Exec(deleteContents, session, sums[len(sums)-1])
	return true, nil
}

// Forget removes the sums of a session without artifacts.
func (s *Service) Forget(tx *store.Tx, session int64) {
	tx.Exec(deleteUsage, session)
}

// Data is what the keeper exports, archives and removes of a session.
func (s *Service) Data() work.Data {
	return work.Data{
		File: "artifacts.jsonl", Kind: "artifacts", Lines: s.Records, Contents: s.Contents, Erase: s.Erase, Forget: s.Forget,
		Look: s.Replaced, Remove: s.Remove,
	}
}
