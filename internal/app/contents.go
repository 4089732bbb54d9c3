package app

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"brokerd/internal/artifacts"
	"brokerd/internal/fault"
	"brokerd/internal/retention"
	"brokerd/internal/store"
)

// contentsFolder returns the folder of the contents of artifacts; empty if the database has them.
func (c Config) contentsFolder() string {
	switch {
	case c.Artifacts != "":
		return c.Artifacts
	case c.Store != "":
		return ""
	}
	return filepath.Join(c.Dir, artifacts.Folder)
}

// contents opens the contents of artifacts.
func (c Config) contents(st *store.Store) (artifacts.Contents, error) {
	dir := c.contentsFolder()
	if dir == "" {
		return artifacts.InStore(st), nil
	}
	contents, err := artifacts.OpenFolder(dir)
	if err != nil && c.Artifacts != "" {
		err = fault.Field("artifacts", "%v", err)
	}
	return contents, err
}

// archiveFolder returns the folder in which removed data is archived; empty if it is not archived, which the log
// says. A folder that is named must exist, or the one in which it is to be made: it may be on a disk that is not
// mounted.
func (a *App) archiveFolder() (string, error) {
	c := a.config
	switch {
	case c.Archive != "":
		if err := os.Mkdir(c.Archive, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fault.Field("archive", "%v", err)
		}
		return c.Archive, nil
	case c.Store != "":
		c.Log.Warn("removed data is not archived: --archive names no folder for it")
		return "", nil
	}
	return filepath.Join(c.Dir, retention.Folder), nil
}
