package setup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/prompt"
)

// newSetupChange reads a file below the folder base. Its change is none yet.
func newSetupChange(base, path, what string) (*setupChange, error) {
	s := &setupChange{Path: path, What: what, base: base, at: filepath.Join(base, path)}
	if err := s.read(); err != nil {
		return nil, problem.Usagef("%s: %v; nothing was changed", path, err)
	}
	s.after = s.before
	return s, nil
}

// read reads the file of the change; of a symbolic link, its target.
func (s *setupChange) read() error {
	s.file = s.at
	info, err := os.Lstat(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		s.file, err = filepath.EvalSymlinks(s.file)
	}
	if err == nil {
		info, err = os.Stat(s.file)
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("is no regular file")
	}
	if err != nil {
		return err
	}
	text, err := os.ReadFile(s.file)
	s.before = Content{Text: string(text), Exists: true}
	return err
}

// finish names the change and shows it.
func (s *setupChange) finish() error {
	switch {
	case s.after == s.before:
		s.Action = prompt.Either(len(s.Conflicts) > 0, "conflict", "unchanged")
		return nil
	case !s.before.Exists:
		s.Action = "created"
	case !s.after.Exists:
		s.Action = "removed"
	default:
		s.Action = "changed"
	}
	s.Diff = Diff(s.Path, s.before, s.after)
	if err := s.writable(); err != nil {
		return problem.Usagef("%s: %v; nothing was changed", s.Path, err)
	}
	return nil
}

// writable returns an error if the file must not be replaced. A rename would replace a read-only file
// too, so it checks the mode.
func (s *setupChange) writable() error {
	if !s.before.Exists {
		return nil
	}
	info, err := os.Stat(s.file)
	if err == nil && info.Mode()&0o222 == 0 {
		err = errors.New("is read-only")
	}
	return err
}

// write makes the change: it replaces the file at once, with its mode and owner, or removes it with the
// folders that are empty then.
func (s *setupChange) write() error {
	if s.after == s.before {
		return nil
	}
	if s.add != nil {
		_, err := s.add.write(s.at)
		return err
	}
	if now := (&setupChange{at: s.at}); now.read() != nil || now.before != s.before {
		return errors.New("changed meanwhile; call setup again")
	}
	if !s.after.Exists && s.file == s.at {
		if err := os.Remove(s.file); err != nil {
			return err
		}
		for dir := filepath.Dir(s.file); dir != s.base && os.Remove(dir) == nil; {
			dir = filepath.Dir(dir)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.file), 0o755); err != nil {
		return err
	}
	if !s.before.Exists {
		f, err := os.OpenFile(s.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(s.after.Text)
		return errors.Join(err, f.Close())
	}
	return replaceFile(s.file, s.after.Text)
}

// replaceFile replaces the content of a file by renaming a temporary file beside it.
func replaceFile(path, text string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".brokerctl-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Sync(), f.Close())
	if err == nil {
		_ = os.Chown(f.Name(), int(setting.Owner(info)), -1) // as root only; another user may not give a file away
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
