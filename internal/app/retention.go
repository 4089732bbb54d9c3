package app

import (
	"brokerd/internal/retention"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
)

// kept gives the keeper sessions.
type kept struct{ *sessions.Registry }

// All implements retention.Sessions.
func (k kept) All(q store.Querier) ([]retention.Session, error) {
	all, err := k.Registry.All(q)
	list := make([]retention.Session, len(all))
	for i, s := range all {
		list[i] = retention.Session{
			ID: s.ID, Name: s.Name,
			KeepMessages: s.Settings.GetMessageRetention().AsDuration(),
			KeepEvents:   s.Settings.GetEventRetention().AsDuration(),
			KeepDead:     s.Settings.GetDeadLetterRetention().AsDuration(),
			Closed:       s.Closed(), Revision: s.Revision, Record: s.Record,
		}
	}
	return list, err
}
