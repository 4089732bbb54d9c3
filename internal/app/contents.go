package app

import (
	"path/filepath"

	"brokerd/internal/artifacts"
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

// contents opens the contents of artifacts, and reports whether they are in a folder.
func (c Config) contents(st *store.Store) (contents artifacts.Contents, inFolder bool, err error) {
	dir := c.contentsFolder()
	if dir == "" {
		return artifacts.InStore(st), false, nil
	}
	contents, err = artifacts.OpenFolder(dir)
	return contents, true, err
}
