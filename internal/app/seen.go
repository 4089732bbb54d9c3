package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
)

// seenFile is the file of the data folder that says how far a database on a server was when the broker last looked.
// A broker that was started again refuses a server that has lost changes since, such as an asynchronous standby.
const seenFile = "seen.json"

// saves is how often the file is written. Changes that are lost together with the broker less than this after they were
// confirmed are not missed.
const saves = 10 * time.Second

// A seen is what a broker knows to be in its database, in memory and in the file. Its methods may be called
// concurrently.
type seen struct {
	path string
	log  *zap.Logger

	mu    sync.Mutex // guards the fields below, and the file
	knows postgres.Seen
	saved postgres.Seen
}

// openSeen reads the file.
func openSeen(dir string, log *zap.Logger) (*seen, error) {
	s := &seen{path: filepath.Join(dir, seenFile), log: log}
	text, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s.knows)
	}
	if err != nil {
		return nil, fault.New(fault.Precondition, "SEEN_UNREADABLE",
			"%s does not say how far the database was (%v): remove it if the database has lost nothing", s.path, err)
	}
	s.saved = s.knows
	return s, nil
}

// known returns what the broker knows.
func (s *seen) known() postgres.Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.knows
}

// note adds to what the broker knows.
func (s *seen) note(more postgres.Seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.knows = s.knows.And(more)
}

// save writes the file if it has changed.
func (s *seen) save() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.knows.Instance == s.saved.Instance && s.knows.Revision == s.saved.Revision {
		return nil
	}
	text, err := json.Marshal(s.knows)
	if err == nil {
		err = replaceFile(s.path, text)
	}
	if err != nil {
		return fmt.Errorf("note how far the database is: %w", err)
	}
	s.saved = s.knows
	return nil
}

// keep notes what look returns and saves it, every few seconds and when ctx ends. Then it returns.
func (s *seen) keep(ctx context.Context, look func() postgres.Seen) {
	ticker := time.NewTicker(saves) //nolint:forbidigo // of a real server, whatever the clock of the broker
	defer ticker.Stop()
	for {
		ended := false
		select {
		case <-ticker.C:
		case <-ctx.Done():
			ended = true
		}
		s.note(look())
		if err := s.save(); err != nil {
			s.log.Warn("a loss of confirmed changes may not be noticed after a restart", zap.Error(err))
		}
		if ended {
			return
		}
	}
}

// replaceFile writes a file that may exist, whole or not at all.
func replaceFile(path string, text []byte) error {
	partial := path + ".new"
	f, err := os.OpenFile(partial, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(partial, path)
}

// expectSeen has a broker without replicas refuse a server that has lost changes.
func (a *App) expectSeen() (err error) {
	c := a.config
	if c.Store == "" {
		return nil
	}
	if a.seen, err = openSeen(c.Dir, c.Log.Named("store")); err != nil {
		return err
	}
	if a.database, err = c.database(); err != nil {
		return err
	}
	a.database.Expect(a.seen.known)
	return nil
}

// keepSeen has this broker refuse a server at its next start that has lost changes.
func (a *App) keepSeen(st *store.Store) {
	look := func() postgres.Seen { return postgres.Seen{Instance: st.InstanceID(), Revision: st.Revision()} }
	ctx, cancel := context.WithCancel(context.Background())
	var kept sync.WaitGroup
	kept.Go(func() { a.seen.keep(ctx, look) })
	a.onStop(func(context.Context) error {
		cancel()
		kept.Wait()
		return nil
	})
}
