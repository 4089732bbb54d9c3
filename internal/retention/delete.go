package retention

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// deletedFolder is where the exports of deleted sessions are, in the archive.
const deletedFolder = "deleted"

// A Deleted is what became of a session.
type Deleted struct {
	Archive  string // folder of its export, below the data folder or absolute; empty without an archive
	Revision int64
}

// errUnseen says that a request has not been answered before.
var errUnseen = errors.New("not seen before")

// Delete exports a closed session into the archive, if there is one, and removes it. If it is interrupted, the next
// call or the next start of the broker resumes it. Errors: fault.NotFound if there is no such session,
// fault.Precondition (SESSION_OPEN) if it is not closed; otherwise as Export.
func (k *Keeper) Delete(ctx context.Context, who identity.Caller, req idempotency.Request, name string) (Deleted, error) {
	var d Deleted
	err := k.Store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &d, func() error { return errUnseen })
		return err
	})
	if err == nil || !errors.Is(err, errUnseen) {
		return d, err
	}
	s, err := k.find(ctx, name)
	if err != nil {
		return d, err
	}
	if !s.Closed {
		open := fault.New(fault.Precondition, "SESSION_OPEN", "the session %q is open: close it first", name)
		open.Resource, open.Name = "session", name
		return d, open
	}
	k.deleting.Lock()
	defer k.deleting.Unlock()
	defer k.hold(s.ID)()
	del, begun, err := k.begun(ctx, s.ID)
	if err == nil && !begun {
		del, err = k.begin(ctx, s, who.Name())
	}
	if err != nil {
		return d, fmt.Errorf("delete session %s: %w", name, err)
	}
	// Whether the caller still waits or not: what was begun is finished, if only by the next start.
	d, err = k.finish(k.ctx, s, del, req)
	if err != nil {
		return d, fmt.Errorf("delete session %s: %w", name, err)
	}
	return d, nil
}

// A deletion is one that was begun: the export is complete, and rows may be missing.
type deletion struct {
	session int64
	archive string
	source  string
}

func (k *Keeper) begun(ctx context.Context, session int64) (d deletion, found bool, err error) {
	d.session = session
	err = k.Store.Read(ctx, func(snap *store.Snapshot) error {
		return snap.QueryRow(selectDeletion, session).Scan(&d.archive, &d.source)
	})
	if errors.Is(err, store.ErrNoRows) {
		return d, false, nil
	}
	return d, err == nil, err
}

// begin exports the session and notes that it is being deleted.
func (k *Keeper) begin(ctx context.Context, s Session, source string) (deletion, error) {
	if _, err := k.find(ctx, s.Name); err != nil { // another call may have been faster
		return deletion{}, err
	}
	d := deletion{session: s.ID, source: source}
	if k.Archive == "" {
		if err := k.awaitClosed(ctx, s); err != nil {
			return d, err
		}
	} else {
		dir := filepath.Join(k.Archive, deletedFolder, s.Name+"-"+strconv.FormatInt(s.Revision, 10))
		if err := k.exportTo(ctx, s, dir); err != nil {
			return d, err
		}
		d.archive = dir
		if below, err := filepath.Rel(k.Dir, dir); err == nil && filepath.IsLocal(below) {
			d.archive = below
		}
	}
	return d, k.Store.Write(ctx, func(tx *store.Tx) error {
		k.Events.RaiseFloor(tx, s.ID, k.Store.Revision()) // followers get an error that names the floor
		tx.Exec(insertDeletion, d.session, d.archive, d.source)
		return nil
	})
}

// exportTo writes an export into a folder, which is there whole or not at all.
func (k *Keeper) exportTo(ctx context.Context, s Session, dir string) error {
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := k.makeFolder(partial); err != nil {
		return err
	}
	to := &folder{dir: partial}
	_, err := k.export(ctx, s, to)
	if err := errors.Join(err, to.close()); err != nil {
		return errors.Join(err, os.RemoveAll(partial))
	}
	for _, sub := range append(to.folders, ".") {
		if err := k.syncFolder(filepath.Join(partial, sub)); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil { // of an attempt that was interrupted before anything was removed
		return err
	}
	if err := os.Rename(partial, dir); err != nil {
		return err
	}
	return k.syncFolder(filepath.Dir(dir))
}

// A folder is a sink that makes files.
type folder struct {
	dir     string
	folders []string // made in it
	name    string
	file    *os.File
}

// Piece implements Sink.
func (f *folder) Piece(name string, data []byte) error {
	if name != f.name {
		if err := f.close(); err != nil {
			return err
		}
		if sub := filepath.Dir(name); sub != "." && !slices.Contains(f.folders, sub) {
			if err := os.Mkdir(filepath.Join(f.dir, sub), 0o700); err != nil {
				return err
			}
			f.folders = append(f.folders, sub)
		}
		file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		f.name, f.file = name, file
	}
	_, err := f.file.Write(data)
	return err
}

func (f *folder) close() error {
	if f.file == nil {
		return nil
	}
	err := errors.Join(f.file.Sync(), f.file.Close())
	f.file = nil
	return err
}

// errMore says that rows have arrived since the pages that removed those of their kind.
var errMore = errors.New("the session has further rows")

// finish removes the rows, the archive files and in the end the session itself. It may have been interrupted anywhere
// before.
func (k *Keeper) finish(ctx context.Context, s Session, del deletion, req idempotency.Request) (Deleted, error) {
	for {
		if err := k.erase(ctx, s); err != nil {
			return Deleted{}, err
		}
		var d Deleted
		err := k.Store.Write(ctx, func(tx *store.Tx) error {
			_, err := req.Do(tx, &d, func() (err error) {
				d.Archive = del.archive
				d.Revision, err = k.forget(tx, del)
				return err
			})
			return err
		})
		if !errors.Is(err, errMore) {
			return d, err
		}
	}
}

// erase removes all but the last rows of a session, in pages, and its archive files.
func (k *Keeper) erase(ctx context.Context, s Session) error {
	if err := k.eraseMessages(ctx, s.ID); err != nil {
		return err
	}
	if err := k.eraseEvents(ctx, s.ID); err != nil {
		return err
	}
	for _, p := range k.Parts {
		if err := k.erasePages(ctx, s.ID, p.Erase); err != nil {
			return err
		}
	}
	if err := k.eraseEvents(ctx, s.ID); err != nil { // of what a feature has finished meanwhile
		return err
	}
	if err := k.removeArchive(s.Name); err != nil {
		return err
	}
	return k.erasePages(ctx, s.ID, eraseArchives)
}

func (k *Keeper) eraseMessages(ctx context.Context, session int64) error {
	for after := int64(0); ; {
		began := k.Clock.Now()
		var page []work.Standing
		err := k.Store.Read(ctx, func(snap *store.Snapshot) (err error) {
			page, err = k.Messages.Standings(snap, session, after, pageItems, false)
			return err
		})
		if err != nil || len(page) == 0 {
			return err
		}
		after = page[len(page)-1].Last
		for len(page) > 0 {
			var removed int
			err := k.Store.Write(ctx, func(tx *store.Tx) (err error) {
				removed, err = k.Messages.Erase(tx, page, pageRows)
				return err
			})
			if err != nil {
				return err
			}
			page = page[removed:]
			if err := k.seam(); err != nil {
				return err
			}
			if err := k.pauseFor(ctx, began, 1); err != nil {
				return err
			}
			began = k.Clock.Now()
		}
	}
}

func (k *Keeper) eraseEvents(ctx context.Context, session int64) error {
	for after := int64(0); ; {
		began := k.Clock.Now()
		var revisions []int64
		err := k.Store.Read(ctx, func(snap *store.Snapshot) error {
			page, looked, err := k.Events.After(snap, session, after, pageItems, pageBytes)
			for _, e := range page {
				revisions = append(revisions, e.Revision)
			}
			after = looked
			return err
		})
		if err != nil || after == 0 {
			return err
		}
		if len(revisions) == 0 {
			continue
		}
		if err := k.Store.Write(ctx, func(tx *store.Tx) error { return k.Events.Remove(tx, session, revisions) }); err != nil {
			return err
		}
		if err := k.pauseFor(ctx, began, 1); err != nil {
			return err
		}
	}
}

// erasePages removes rows of a session, each page in a separate function. A nil function removes
// none.
func (k *Keeper) erasePages(ctx context.Context, session int64, erase func(*store.Tx, int64, int) (bool, error)) error {
	for more := erase != nil; more; {
		began := k.Clock.Now()
		err := k.Store.Write(ctx, func(tx *store.Tx) (err error) {
			more, err = erase(tx, session, pageItems)
			return err
		})
		if err != nil {
			return err
		}
		if err := k.pauseFor(ctx, began, 1); err != nil {
			return err
		}
	}
	return nil
}

// eraseArchives removes up to limit rows about the archive files of a session.
func eraseArchives(tx *store.Tx, session int64, limit int) (more bool, err error) {
	left, err := tx.ExecPage(limit, []string{deleteSomeArchives}, session)
	return left == 0, err
}

// removeArchive removes the archive files of a session, which its export contains. Other files in the
// folder stay.
func (k *Keeper) removeArchive(name string) error {
	if k.Archive == "" {
		return nil
	}
	dir := filepath.Join(k.Archive, name)
	files, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if !k.archives(f.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
			return err
		}
	}
	_ = os.Remove(dir) // fails if it has other files
	return k.syncFolder(k.Archive)
}

// archives reports whether a file in a session's folder is one that the keeper makes.
func (k *Keeper) archives(file string) bool {
	kind, _, _ := strings.Cut(file, "-")
	ours := kind == messagesKind || kind == eventsKind ||
		slices.ContainsFunc(k.Parts, func(p work.Data) bool { return p.Kind != "" && p.Kind == kind })
	return ours && strings.HasSuffix(file, suffix)
}

// forget removes the last rows of a session. It returns errMore, and its changes are undone, if
// these are more than a page.
func (k *Keeper) forget(tx *store.Tx, del deletion) (int64, error) {
	erasers := []func(*store.Tx, int64, int) (bool, error){eraseArchives}
	for _, p := range k.Parts {
		if p.Erase != nil {
			erasers = append(erasers, p.Erase)
		}
	}
	for _, erase := range erasers {
		more, err := erase(tx, del.session, pageItems)
		if err != nil {
			return 0, err
		}
		if more || tx.Changed() > pageRows {
			return 0, errMore
		}
	}
	for _, p := range k.Parts {
		if p.Forget != nil {
			p.Forget(tx, del.session)
		}
	}
	k.Events.Forget(tx, del.session)
	tx.Exec(deleteDeletion, del.session)
	return k.Sessions.Delete(tx, del.session, del.source, filepath.ToSlash(del.archive))
}

// resume finishes deletions that were interrupted.
func (k *Keeper) resume(ctx context.Context) error {
	if !k.deleting.TryLock() {
		return nil // a call is at it
	}
	defer k.deleting.Unlock()
	var open []deletion
	sessions := map[int64]Session{}
	err := k.Store.Read(ctx, func(snap *store.Snapshot) error {
		rows := snap.Query(selectDeletions)
		defer rows.Close()
		for rows.Next() {
			var d deletion
			if err := rows.Scan(&d.session, &d.archive, &d.source); err != nil {
				return err
			}
			open = append(open, d)
		}
		if err := rows.Err(); err != nil || len(open) == 0 {
			return err
		}
		all, err := k.Sessions.All(snap)
		for _, s := range all {
			sessions[s.ID] = s
		}
		return err
	})
	for _, d := range open {
		if err != nil {
			return err
		}
		k.Log.Info("resuming a deletion", zap.String("session", sessions[d.session].Name))
		_, err = k.finish(ctx, sessions[d.session], d, idempotency.Request{})
	}
	return err
}
