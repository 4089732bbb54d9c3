package agentmessages

import (
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"brokerd/cmd/brokerctl/bridge/engine"
)

// exchange replaces a file by a temporary file and returns the text that it replaces.
func exchange(f *engine.Folder, temp, name string) ([]byte, error) {
	from, err := f.Open(path.Dir(temp))
	if err != nil {
		return nil, err
	}
	defer from.Close() //nolint:errcheck // a folder
	to, err := f.Open(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer to.Close() //nolint:errcheck // a folder
	err = unix.Renameat2(int(from.Fd()), path.Base(temp), int(to.Fd()), path.Base(name), unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP):
		return exchangeByName(f, temp, name) // such as a network file system
	case err != nil:
		return nil, &os.PathError{Op: "exchange", Path: name, Err: err}
	}
	return f.Read(temp)
}
