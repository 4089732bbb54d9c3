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

// announce writes the endpoint file.
func (a *App) announce() error {
	if a.front != nil {
		return nil // it is written already
	}
	remove, err := writeEndpoint(a.config.Dir, a.Addresses()[0])
	if err == nil {
		a.onStop(func(context.Context) error { return remove() })
	}
	return err
}

// writeEndpoint writes the endpoint file, whole or not at all, and returns what removes it.
func writeEndpoint(dir, address string) (remove func() error, err error) {
	path := filepath.Join(dir, EndpointFile)
	if err := replaceFile(path, []byte(address+"\n")); err != nil {
		return nil, fmt.Errorf("write endpoint file: %w", err)
	}
	return func() error {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove endpoint file: %w", err)
		}
		return nil
	}, nil
}
