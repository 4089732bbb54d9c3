package app

import (
	"io"

	"brokerd/internal/artifacts"
	"brokerd/internal/backup"
	"brokerd/internal/broker"
	"brokerd/internal/disk"
	"brokerd/internal/events"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
)

// newBackups returns what makes backups.
func newBackups(c Config, st *store.Store, journal *events.Log, scopes *sessions.Registry, files *artifacts.Repository) *backup.Maker {
	return backup.New(backup.Options{
		Store: st, Log: journal, Contents: storedContents{files}, Disk: diskSpace{c}, Count: countOf(scopes, journal),
		Dir: c.Dir, Version: c.Version, Clock: c.Clock, Logger: c.Log.Named("backup"),
	})
}

// countOf returns what counts the rows of a backup.
func countOf(scopes *sessions.Registry, journal *events.Log) func(store.Querier) (backup.Counts, error) {
	return func(q store.Querier) (n backup.Counts, err error) {
		all, err := scopes.Count(q)
		if err != nil {
			return n, err
		}
		n.Sessions = int64(all)
		if n.Messages, _, err = broker.Totals(q); err != nil {
			return n, err
		}
		n.Events, err = journal.Count(q)
		return n, err
	}
}

// storedContents passes the files of artifacts to a backup.
type storedContents struct{ files *artifacts.Repository }

// Keep implements backup.Contents.
func (s storedContents) Keep() (release func()) { return s.files.Keep() }

// All implements backup.Contents.
func (s storedContents) All(q store.Querier) (all []backup.Content, err error) {
	err = s.files.EachContent(q, func(sum string, size int64) { all = append(all, backup.Content{SHA256: sum, Size: size}) })
	return all, err
}

// Open implements backup.Contents.
func (s storedContents) Open(sum string) (io.ReadCloser, error) { return s.files.OpenContent(sum) }

// diskSpace compares what a backup needs with the disk.
type diskSpace struct{ config Config }

// Fits implements backup.Disk.
func (d diskSpace) Fits(bytes int64) error {
	used, err := d.config.DiskUsed(d.config.Dir)
	if err != nil {
		return err
	}
	return disk.Fits(d.config.Dir, used, bytes)
}
