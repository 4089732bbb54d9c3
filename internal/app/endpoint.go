package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// EndpointFile is the file of the data folder that says, in one line, where to reach the daemon.
// Clients that are given no address look there.
const EndpointFile = "endpoint"

// announce writes the endpoint file, whole or not at all.
func (a *App) announce() error {
	path := filepath.Join(a.config.Dir, EndpointFile)
	a.onStop(func(context.Context) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove endpoint file: %w", err)
		}
		return nil
	})
	partial := path + ".new"
	if err := os.WriteFile(partial, []byte(a.Addresses()[0]+"\n"), 0o600); err != nil {
		return fmt.Errorf("write endpoint file: %w", err)
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("write endpoint file: %w", err)
	}
	return nil
}
