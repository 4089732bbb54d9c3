package app

import (
	"io"

	"brokerd/internal/artifacts"
	"brokerd/internal/backup"
	"brokerd/internal/directory"
	"brokerd/internal/diskguard"
	"brokerd/internal/events"
	"brokerd/internal/gauges"
	"brokerd/internal/store"
)

// newBackup returns the maker of backups.
func newBackup(p *parts, c Config) *backup.Maker {
	return backup.New(backup.Options{
		Store:    p.store,
		Log:      p.events,
		Contents: storedContents{p.artifacts},
		Disk:     diskSpace{c},
		Count:    countOf(p.directory, p.events),
		Dir:      c.Dir,
		Version:  c.Version,
		Clock:    c.Clock,
		Logger:   c.Log.Named("backup"),
	})
}

// countOf returns the function that counts the rows of a backup.
func countOf(dir *directory.Directory, log *events.Log) func(store.Querier) (backup.Counts, error) {
	return func(q store.Querier) (n backup.Counts, err error) {
		all, err := dir.CountSessions(q)
		if err != nil {
			return n, err
		}
		n.Sessions = int64(all)
		if n.Messages, _, err = gauges.Totals(q); err != nil {
			return n, err
		}
		n.Events, err = log.Count(q)
		return n, err
	}
}

// storedContents passes the files of artifacts to a backup.
type storedContents struct{ artifacts *artifacts.Service }

// Keep implements backup.Contents.
func (s storedContents) Keep() (release func()) { return s.artifacts.Keep() }

// All implements backup.Contents.
func (s storedContents) All(q store.Querier) (all []backup.Content, err error) {
	err = s.artifacts.EachContent(q, func(sum string, size int64) {
		all = append(all, backup.Content{SHA256: sum, Size: size})
	})
	return all, err
}

// Open implements backup.Contents.
func (s storedContents) Open(sum string) (io.ReadCloser, error) { return s.artifacts.OpenContent(sum) }

// diskSpace compares what a backup needs with the disk.
type diskSpace struct{ config Config }

// Fits implements backup.Disk.
func (d diskSpace) Fits(bytes int64) error {
	used, err := d.config.DiskUsed(d.config.Dir)
	if err != nil {
		return err
	}
	return diskguard.Fits(d.config.Dir, used, bytes)
}
