package app

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"brokerd/internal/artifacts"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/store/move"
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
// must be empty, or left by a Migrate that was interrupted. Contents of artifacts that both configurations have in the
// same folder stay there. The target continues with the same instance and revision, and no broker starts on the source
// any more. progress receives lines for people.
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
	m.Report, err = move.Run(ctx, move.Options{
		From: source.Place, To: target.Place, Without: []string{chunksTable}, Progress: progress,
		Contents: func() error {
			if err := m.copyContents(ctx, source, target, progress); err != nil {
				return fmt.Errorf("copy the contents of artifacts: %w", err)
			}
			return nil
		},
	})
	return m, err
}

// A place is a store with the configuration of its broker.
type place struct {
	*store.Store
	move.Place
	config Config
}

// openPlace opens a store for Migrate.
func openPlace(ctx context.Context, c Config, o store.Options) (p place, err error) {
	if c, err = c.alone(); err != nil {
		return p, err
	}
	p.Place = move.Place{Name: c.Dir, File: filepath.Join(c.Dir, store.DatabaseFile)}
	if c.Store != "" {
		if p.Server, err = c.database(); err != nil {
			return p, err
		}
		o.Database, p.Place.Name, p.File = p.Server, p.Server.Name(), ""
	}
	p.config, o.Moving, o.Unchecked = c, true, true
	p.Store, err = openStore(ctx, c, o, nil)
	return p, err
}

// copyContents copies the contents that a session has, and compares their hashes.
func (m *Moved) copyContents(ctx context.Context, source, target place, progress func(line string)) (err error) {
	sizes, total := map[string]int64{}, int64(0)
	err = source.Inspect(ctx, func(snap *store.Snapshot) error {
		return artifacts.EachContent(snap, func(sum string, size int64) { sizes[sum], total = size, total+size })
	})
	if err != nil || len(sizes) == 0 {
		return err
	}
	progress(fmt.Sprintf("artifacts: %d contents with %d bytes", len(sizes), total))
	from, err := source.config.contents(source.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	if err := source.checkContents(ctx, from); err != nil {
		return err
	}
	if folder := source.config.contentsFolder(); folder != "" && folder == target.config.contentsFolder() {
		return nil // they stay in the folder
	}
	to, err := target.config.contents(target.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	for _, sum := range slices.Sorted(maps.Keys(sizes)) {
		if err := copyContent(ctx, from, to, sum); err != nil {
			return fmt.Errorf("content %s: %w", sum, err)
		}
		m.Contents, m.Bytes = m.Contents+1, m.Bytes+sizes[sum]
	}
	progress(fmt.Sprintf("artifacts: %d contents copied", m.Contents))
	return nil
}

// checkContents refuses contents that are not where the configuration says.
func (p *place) checkContents(ctx context.Context, contents artifacts.Contents) error {
	return p.Inspect(ctx, func(snap *store.Snapshot) error {
		problems, err := contents.Check(snap, 1)
		if err != nil || len(problems) == 0 {
			return err
		}
		return fault.New(fault.Precondition, "MISSING_CONTENT",
			"%s in %s: name the folder of artifacts with which the broker ran, or none if it ran without",
			problems[0], cmp.Or(p.config.contentsFolder(), p.Place.Name))
	})
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
