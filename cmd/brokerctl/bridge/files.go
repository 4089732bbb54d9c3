package bridge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// maxFile is the size in bytes above which a file cannot be a message: the broker's own limit is
// 1 MiB unless the session permits more.
const maxFile = 16 << 20

// rejectedDir has the files that cannot be read as the format, each beside a file NAME.error.
const rejectedDir = "rejected"

// errorExt ends the name of the file with the reason.
const errorExt = ".error"

// errIncomplete says that a file may still be being written.
var errIncomplete = errors.New("the file is not complete")

// writeNew writes a file and syncs it.
func writeNew(root *os.Root, name string, data []byte) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// syncDir makes the names of a folder durable.
func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// list returns the names of a folder in order, without those that begin with a dot or that end as
// the names of temporary files do. A folder that does not exist has none.
func (b *bridge) list(dir string) ([]string, error) {
	d, err := b.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	err = errors.Join(err, d.Close())
	names = slices.DeleteFunc(names, func(name string) bool {
		ext := path.Ext(name)
		return name[0] == '.' || name[len(name)-1] == '~' || ext == ".tmp" || ext == ".part" || ext == ".swp"
	})
	slices.Sort(names)
	return names, err
}

// listWritten is list without the names after which a name may be missing. A file that is created while
// a folder is read may be missing although a later one is in the list. So listWritten reads the
// folder twice: every file of the first list existed before the second list began.
func (b *bridge) listWritten(dir string) ([]string, error) {
	first, err := b.list(dir)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	names, err := b.list(dir)
	end, found := slices.BinarySearch(names, first[len(first)-1])
	if found {
		end++
	}
	return names[:end], err
}

// folders returns the names of the folders in a folder, without those that are hidden.
func (b *bridge) folders(dir string) ([]string, error) {
	names, err := b.list(dir)
	return slices.DeleteFunc(names, func(name string) bool {
		info, err := b.root.Lstat(path.Join(dir, name))
		return err != nil || !info.IsDir()
	}), err
}

// read returns the content of a regular file. A refusal says that the file cannot be a message.
func (b *bridge) read(name string) ([]byte, error) {
	info, err := b.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, refusal(fmt.Sprintf("it is not a regular file but %s", describe(info.Mode())))
	case info.Size() > maxFile:
		return nil, refusal(fmt.Sprintf("it has %d bytes; a message has at most %d", info.Size(), maxFile))
	}
	data, err := b.root.ReadFile(name)
	if errors.Is(err, fs.ErrPermission) {
		return nil, refusal("the bridge is not permitted to read it")
	}
	return data, err
}

func describe(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	}
	return "a device or a socket"
}

// unsettled reports whether a file has changed in the last Settle, so that its writer may be at work.
func (b *bridge) unsettled(name string) bool {
	info, err := b.root.Lstat(name)
	return err == nil && info.Mode().IsRegular() && b.changedWithin(name, info, b.Settle)
}

// changedWithin reports whether a file has changed in the last d. The time of a change may be in the future: clocks
// differ. It then counts from when the bridge first saw it.
func (b *bridge) changedWithin(name string, info fs.FileInfo, d time.Duration) bool {
	age := time.Since(info.ModTime())
	if age < 0 {
		age = time.Since(b.future.since(name, stamp{info.Size(), info.ModTime()}))
	}
	return age < d
}

// sightings has when the bridge first saw the versions of files that are from the future. It is safe for concurrent
// use.
type sightings struct {
	mu   sync.Mutex // guards seen
	seen map[string]sighting
}

// A sighting is when the bridge first saw a version of a file.
type sighting struct {
	version stamp
	at      time.Time
}

// since returns when the bridge first saw a version of a file.
func (s *sightings) since(name string, version stamp) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, known := s.seen[name]
	if known && found.version == version {
		return found.at
	}
	if s.seen == nil || len(s.seen) == 10_000 { // the files that are still there count from now on
		s.seen = map[string]sighting{}
	}
	now := time.Now()
	s.seen[name] = sighting{version, now}
	return now
}

// take moves a file of a folder to the bridge's own folder, where no writer changes it, and gives it
// a key. It returns its new name.
func (b *bridge) take(name, owner string) (string, error) {
	key, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	base := path.Base(name)
	base = base[max(0, len(base)-200):] // the limit of a name is 255 bytes, and list reads the end
	taken := path.Join(private, "sending", owner, key.String()+"-"+base)
	return taken, b.root.Rename(name, taken)
}

// taken splits the name of a file that take has moved into its key and its earlier name.
func taken(name string) (uuid.UUID, string, error) {
	base := path.Base(name)
	if len(base) < 37 || base[36] != '-' {
		return uuid.UUID{}, "", fmt.Errorf("%s does not begin with a key", name)
	}
	key, err := uuid.Parse(base[:36])
	return key, base[37:], err
}

// reject moves a file to rejected/ with a reason beside it and an event. place is what the reason
// calls the file. It can be repeated after a crash.
func (b *bridge) reject(ctx context.Context, name, place, reason string) error {
	if err := b.root.MkdirAll(rejectedDir, 0o755); err != nil {
		return err
	}
	text := complaint(place, reason)
	target, err := b.freeName(place, text, nil)
	if err != nil {
		return err
	}
	info, err := b.root.Lstat(name)
	if err != nil {
		return err
	}
	if err := b.complain(ctx, target, text, info.ModTime().String()); err != nil {
		return err
	}
	return b.root.Rename(name, target)
}

// rejectCopy is reject for a part of a file, whose content it writes to rejected/ under a name. A repetition after a
// crash has the same content and place, and thus the same reason beside it.
func (b *bridge) rejectCopy(ctx context.Context, content []byte, name, place, reason string) error {
	if err := b.root.MkdirAll(rejectedDir, 0o755); err != nil {
		return err
	}
	text := complaint(place, reason)
	target, err := b.freeName(name, text, content)
	if err != nil {
		return err
	}
	if err := b.complain(ctx, target, text, fmt.Sprintf("%x", sha256.Sum256(content))); err != nil {
		return err
	}
	if err := writeNew(b.root, target+".tmp", content); err != nil {
		return err
	}
	return b.root.Rename(target+".tmp", target)
}

// complaint returns the text that says why a file is rejected.
func complaint(place, reason string) string {
	return place + ": " + strings.ReplaceAll(reason, "\n", "; ") // joined errors have several lines
}

// complain writes the reason beside a rejected file and publishes the event, once for each version
// of the file.
func (b *bridge) complain(ctx context.Context, target, text, version string) error {
	b.Log("rejects " + text)
	if err := writeNew(b.root, target+errorExt+".tmp", []byte(text+"\n")); err != nil {
		return err
	}
	if err := b.root.Rename(target+errorExt+".tmp", target+errorExt); err != nil {
		return err
	}
	key := uuid.NewSHA1(uuid.NameSpaceURL, []byte(b.id+" "+target+" "+version))
	return b.event(ctx, key, "file_rejected", text)
}

// freeName returns a name in rejected/ for a file. Neither it nor the name of its reason is taken, unless a kill has
// interrupted the same rejection. The folders of the file become a part of the name.
func (b *bridge) freeName(place, text string, content []byte) (string, error) {
	base := strings.ReplaceAll(place, "/", "-")
	if len(base) > 200 { // the limit of a name is 255 bytes
		sum := sha256.Sum256([]byte(base))
		base = fmt.Sprintf("%x-%s", sum[:8], base[len(base)-150:])
	}
	for n := 1; ; n++ {
		name := path.Join(rejectedDir, base)
		if n > 1 {
			name = fmt.Sprintf("%s.%d", name, n)
		}
		_, err := b.root.Lstat(name + errorExt)
		if err == nil {
			if reason, err := b.root.ReadFile(name + errorExt); err != nil || string(reason) != text+"\n" {
				continue
			}
		}
		_, err = b.root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return name, nil
		}
		if err != nil {
			return "", err
		}
		if content == nil {
			continue
		}
		if earlier, err := b.root.ReadFile(name); err == nil && bytes.Equal(earlier, content) {
			return name, nil
		}
	}
}

// oneLine returns text as a single line of at most n bytes.
func oneLine(text string, n int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	for len(text) > n {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return text
}
