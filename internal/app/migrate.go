package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"

	"brokerd/internal/artifacts"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/store/move"
	"brokerd/internal/store/postgres"
)

// A Moved says what Migrate has copied.
type Moved struct {
	move.Report
	Contents, Bytes int64  // of artifacts
	From, To        string // for people
}

// chunksTable is that of the contents of artifacts, which Migrate copies from wherever they are to wherever they
// belong.
const chunksTable = "artifact_chunks"

// Migrate copies all data of a broker that does not run: from a folder to a database on a server, or back. The target
// must be empty, or left by a Migrate that was interrupted. It continues with the same instance and revision, and no
// broker starts on the source any more. progress receives lines for people.
func Migrate(ctx context.Context, from, to Config, progress func(line string)) (m Moved, err error) {
	source, err := openPlace(ctx, from, store.Options{Existing: true, Checkpoint: store.CheckpointExternal})
	if err != nil {
		return m, fmt.Errorf("open the source: %w", err)
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	target, err := openPlace(ctx, to, store.Options{})
	if err != nil {
		return m, fmt.Errorf("open the target: %w", err)
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	m.From, m.To = source.Place.Name, target.Place.Name
	progress("checking " + m.From)
	problems, err := source.Check(ctx)
	if err != nil {
		return m, err
	}
	if len(problems) > 0 {
		return m, fault.New(fault.Precondition, "DAMAGED", "%s is damaged (%s): run 'brokerd check'", m.From, problems[0])
	}
	if target.Revision() == 0 {
		if m.Contents, m.Bytes, err = copyContents(ctx, source, target); err != nil {
			return m, fmt.Errorf("copy the contents of artifacts: %w", err)
		}
	}
	m.Report, err = move.Run(ctx, move.Options{
		From: source.Place, To: target.Place, Without: []string{chunksTable}, Progress: progress,
	})
	return m, err
}

// A place is a store with the configuration of its broker.
type place struct {
	*store.Store
	move.Place
	config Config
}

// openPlace opens a store for Migrate. Nothing of a store on a server is in a data folder.
func openPlace(ctx context.Context, c Config, o store.Options) (p place, err error) {
	if c.Store != "" {
		c.Dir = "."
	}
	if c, err = c.complete(); err != nil {
		return p, err
	}
	p.Place = move.Place{Name: c.Dir, File: filepath.Join(c.Dir, store.DatabaseFile)}
	if c.Store != "" {
		c.Dir = ""
		password, err := c.password()
		if err != nil {
			return p, err
		}
		if p.Server, err = postgres.New(c.Store, password, c.Clock); err != nil {
			return p, err
		}
		p.Place.Name, p.File = p.Server.Name(), ""
	}
	p.config, o.Moving, o.Unchecked = c, true, true
	p.Store, err = openStore(ctx, c, o, nil)
	return p, err
}

// copyContents copies the contents that a session has, and compares their hashes.
func copyContents(ctx context.Context, source, target place) (n, bytes int64, err error) {
	sizes := map[string]int64{}
	err = source.Inspect(ctx, func(snap *store.Snapshot) error {
		return artifacts.EachContent(snap, func(sum string, size int64) { sizes[sum] = size })
	})
	folder := target.config.contentsFolder()
	if err != nil || len(sizes) == 0 || folder != "" && folder == source.config.contentsFolder() {
		return 0, 0, err
	}
	from, err := source.config.contents(source.Store)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := target.config.contents(target.Store)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	for sum := range sizes {
		if err := copyContent(ctx, from, to, sum); err != nil {
			return 0, 0, fmt.Errorf("content %s: %w", sum, err)
		}
		n, bytes = n+1, bytes+sizes[sum]
	}
	return n, bytes, nil
}

// copyContent copies one content.
func copyContent(ctx context.Context, from, to artifacts.Contents, sum string) (err error) {
	content, err := from.Open(ctx, sum)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }() // it is only read
	draft, err := to.Create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, draft.Close()) }()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(draft, hash), io.NewSectionReader(content, 0, math.MaxInt64)); err != nil {
		return err
	}
	if found := hex.EncodeToString(hash.Sum(nil)); found != sum {
		return fmt.Errorf("is damaged: it has the hash %s", found)
	}
	return draft.Keep(sum)
}
