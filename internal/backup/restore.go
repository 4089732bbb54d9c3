package backup

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// maxManifest bounds the manifest in bytes.
const maxManifest = 1 << 20

// A Folder is a data folder into which a backup is unpacked. Until Finish, brokerd refuses to run on it.
type Folder struct {
	dir    string
	made   bool     // by Claim
	marker *os.File // locked; its file marks the folder as incomplete
}

// Claim takes a folder that is new, empty or left by an interrupted restore, and removes what the
// latter has left. Errors: fault.Precondition (FOLDER_NOT_EMPTY, IN_USE).
func Claim(dir string) (*Folder, error) {
	f := &Folder{dir: dir}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		f.made = true
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := f.checkEmpty(); err != nil {
		return nil, err
	}
	marker, err := os.OpenFile(filepath.Join(dir, store.IncompleteFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	f.marker = marker
	if err := unix.Flock(int(marker.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = marker.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.New(fault.Precondition, "IN_USE", "another restore into %s is under way", dir)
		}
		return nil, err
	}
	if err := f.clear(); err != nil {
		return nil, errors.Join(err, marker.Close())
	}
	return f, f.sync()
}

// checkEmpty refuses a folder with files that no restore has written.
func (f *Folder) checkEmpty() error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == store.IncompleteFile {
			return nil
		}
	}
	for _, e := range entries {
		if e.Name() != "lost+found" { // the root of a file system has it
			return fault.New(fault.Precondition, "FOLDER_NOT_EMPTY",
				"the folder %s is not empty (it has %s): restore into a new or empty folder, so that no data is overwritten", f.dir, e.Name())
		}
	}
	return nil
}

// clear removes everything that a restore writes.
func (f *Folder) clear() error {
	var errs []error
	for _, name := range []string{databaseEntry, databaseEntry + "-wal", databaseEntry + "-shm", store.LockFile, contentsFolder} {
		errs = append(errs, os.RemoveAll(filepath.Join(f.dir, name)))
	}
	return errors.Join(errs...)
}

// Discard removes what was unpacked, and the folder if Claim has made it.
func (f *Folder) Discard() error {
	err := f.clear()
	if err == nil {
		err = os.Remove(f.marker.Name())
	}
	err = errors.Join(err, f.Close())
	if err == nil && f.made {
		err = os.Remove(f.dir)
	}
	return err
}

// Close permits another restore into the folder, which is still incomplete.
func (f *Folder) Close() error { return f.marker.Close() }

// Finish makes the folder a data folder on which brokerd runs.
func (f *Folder) Finish() error {
	if err := f.sync(); err != nil {
		return err
	}
	if err := os.Remove(f.marker.Name()); err != nil {
		return err
	}
	return errors.Join(f.sync(), f.Close())
}

// sync writes the names in the folder to the disk.
func (f *Folder) sync() error {
	dir, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Unpack writes the files of a backup into the folder, on the disk, and compares every hash. It
// returns the manifest. Errors: fault.Precondition with the reason NOT_A_BACKUP, NEWER_BACKUP or
// DAMAGED_BACKUP.
func (f *Folder) Unpack(from io.Reader) (Manifest, error) {
	sum := &lagging{from: from, sum: sha256.New()}
	u := &unpacker{dir: f.dir, sum: sum, tar: tar.NewReader(sum)}
	if err := u.manifest(); err != nil {
		return Manifest{}, err
	}
	if err := u.run(); err != nil {
		return u.m, err
	}
	return u.m, nil
}

// An unpacker reads one backup.
type unpacker struct {
	dir string
	sum *lagging
	tar *tar.Reader
	m   Manifest
}

// manifest reads the first entry.
func (u *unpacker) manifest() error {
	notBackup := fault.New(fault.Precondition, "NOT_A_BACKUP", "the file is no backup of brokerd: it does not begin with %s", manifestEntry)
	h, err := u.tar.Next()
	if err != nil || h.Name != manifestEntry || h.Size > maxManifest {
		notBackup.Cause = err
		return notBackup
	}
	text, err := io.ReadAll(u.tar)
	if err != nil {
		return damaged("its manifest ends early", err)
	}
	if err := json.Unmarshal(text, &u.m); err != nil || u.m.Format < 1 {
		notBackup.Cause = err
		return notBackup
	}
	if u.m.Format > format {
		return fault.New(fault.Precondition, "NEWER_BACKUP",
			"the backup was made by brokerd %s, which writes format %d, and this brokerd reads up to format %d: restore it with that version",
			u.m.Version, u.m.Format, format)
	}
	return nil
}

// run unpacks the entries behind the manifest.
func (u *unpacker) run() error {
	database, contents := false, 0
	for {
		h, err := u.tar.Next()
		if err != nil {
			return damaged("it was cut off", err)
		}
		name, isContent := strings.CutPrefix(h.Name, contentsFolder)
		switch {
		case h.Name == databaseEntry && !database:
			database = true
			err = u.unpack(databaseEntry, h.Size, u.m.Database.SHA256)
		case isContent && database && isHash(name):
			contents++
			err = u.unpack(filepath.Join(contentsFolder, name), h.Size, name)
		case h.Name == sumEntry && database && contents == u.m.Contents:
			return u.end()
		default:
			err = damaged(fmt.Sprintf("the entry %q is at the wrong place", h.Name), nil)
		}
		if err != nil {
			return err
		}
	}
}

// unpack writes the file of an entry and syncs it.
func (u *unpacker) unpack(name string, size int64, want string) error {
	path := filepath.Join(u.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	to := &written{to: file}
	_, err = io.Copy(io.MultiWriter(to, sum), u.tar)
	if err != nil && to.err == nil {
		err = damaged("it was cut off in "+name, err)
	}
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != want {
		return damaged(fmt.Sprintf("%s (%d bytes) does not have its hash", name, size), nil)
	}
	return nil
}

// end compares the hash of the file with its last entry, and checks that nothing follows.
func (u *unpacker) end() error {
	found := hex.EncodeToString(u.sum.sum.Sum(nil))
	line, err := io.ReadAll(io.LimitReader(u.tar, tarBlock))
	if err != nil {
		return damaged("it was cut off", err)
	}
	if strings.TrimSuffix(string(line), "\n") != found {
		return damaged("its hash is "+found+", not that of its last entry", nil)
	}
	// The padding of the line and two empty blocks end the file.
	padding := make([]byte, 3*tarBlock-len(line))
	rest, err := io.ReadAll(io.LimitReader(u.sum, 4*tarBlock))
	if err != nil || !bytes.Equal(rest, padding) {
		return damaged("its end is cut off, or something follows it", err)
	}
	return nil
}

func damaged(what string, cause error) error {
	e := fault.New(fault.Precondition, "DAMAGED_BACKUP", "the backup is damaged: %s; use another one", what)
	e.Cause = cause
	return e
}

// isHash reports whether s is a SHA-256 in hexadecimal.
func isHash(s string) bool {
	return len(s) == 2*sha256.Size && strings.Trim(s, "0123456789abcdef") == ""
}

// written keeps the error of a write apart from those of reading.
type written struct {
	to  io.Writer
	err error
}

// Write implements io.Writer.
func (w *written) Write(p []byte) (n int, err error) {
	n, w.err = w.to.Write(p)
	return n, w.err
}

// lagging computes the hash of all bytes that were read but the last block. When tar.Reader has read
// the header of an entry, which is one block, the hash is that of the bytes before it.
type lagging struct {
	from io.Reader
	sum  hash.Hash
	last []byte // at most one block
}

// Read implements io.Reader.
func (l *lagging) Read(p []byte) (int, error) {
	n, err := l.from.Read(p)
	l.last = append(l.last, p[:n]...)
	if more := len(l.last) - tarBlock; more > 0 {
		l.sum.Write(l.last[:more])
		l.last = append(l.last[:0], l.last[more:]...)
	}
	return n, err
}
