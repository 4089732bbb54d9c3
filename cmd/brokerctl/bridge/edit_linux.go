package bridge

import (
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// exchange replaces a file by a temporary file and returns the text that it replaces.
func (b *bridge) exchange(temp, name string) ([]byte, error) {
	from, err := b.root.Open(path.Dir(temp))
	if err != nil {
		return nil, err
	}
	defer from.Close() //nolint:errcheck // a folder
	to, err := b.root.Open(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer to.Close() //nolint:errcheck // a folder
	err = unix.Renameat2(int(from.Fd()), path.Base(temp), int(to.Fd()), path.Base(name), unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP):
		return b.exchangeByName(temp, name) // such as a network file system
	case err != nil:
		return nil, &os.PathError{Op: "exchange", Path: name, Err: err}
	}
	return b.read(temp)
}
