package store

import (
	"context"
	"os"
)

// Facts are facts about the database.
type Facts struct {
	Bytes      int64  // that the database occupies, without SQLite's write-ahead log
	Confirmed  string // where a confirmed change is, for people: "on this machine's disk"
	Standby    bool   // a commit ends when a synchronous standby has it, too
	RoundTrips uint64 // how often the writer has waited for the server since the start
}

// Name returns how people call the database: "sqlite", or the URL of the database on a server, without a password.
func (s *Store) Name() string {
	if s.server == nil {
		return "sqlite"
	}
	return s.server.Name()
}

// OnServer reports whether the database is on a server.
func (s *Store) OnServer() bool { return s.server != nil }

// Facts asks the file system or the server. Its errors are those of Read.
func (s *Store) Facts(ctx context.Context) (f Facts, err error) {
	if s.server == nil {
		return s.FactsIn(nil)
	}
	err = s.Read(ctx, func(snap *Snapshot) error {
		f, err = s.FactsIn(snap)
		return err
	})
	return f, err
}

// FactsIn is Facts inside of Read, which SQLite does not need.
func (s *Store) FactsIn(snap *Snapshot) (f Facts, err error) {
	if s.server != nil {
		return s.server.Facts(snap.conn.db)
	}
	f.Confirmed = "on this machine's disk"
	if s.sync == SyncNormal {
		f.Confirmed = "in this machine's memory until it is on the disk: a power cut can lose it, a crash of brokerd cannot"
	}
	if info, err := os.Stat(s.path); err == nil {
		f.Bytes = info.Size()
	}
	return f, nil
}
