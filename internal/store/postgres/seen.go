package postgres

import "brokerd/internal/fault"

// Seen is what a program knows to be in a database.
type Seen struct {
	Instance int64 `json:"instance"` // of the database, see store.Store.InstanceID; 0 = it knows none
	Revision int64 `json:"revision"` // of its newest change
	Commits  int64 `json:"-"`        // how many transactions it counts; fewer in one that was restored
}

// And returns what is known by both. What concerns another instance is no longer of use.
func (s Seen) And(newer Seen) Seen {
	switch {
	case newer.Instance == 0:
		return s
	case newer.Instance != s.Instance:
		return newer
	}
	return Seen{s.Instance, max(s.Revision, newer.Revision), max(s.Commits, newer.Commits)}
}

// holds refuses a database that lacks something of what is known.
func (s Seen) holds(known Seen) error {
	if s.Instance != known.Instance || s.Revision >= known.Revision && s.Commits >= known.Commits {
		return nil
	}
	return fault.New(fault.Precondition, "COMMITS_LOST",
		"the server has lost confirmed changes (it is at revision %d and %d transactions, and was at %d and %d): stop every "+
			"brokerd on this database, run 'brokerd restored' on it, and start them again",
		s.Revision, s.Commits, known.Revision, known.Commits)
}
