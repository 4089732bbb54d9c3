package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"brokerd/internal/store"
)

const (
	readEvery = time.Second // at most: whoever asks more often is shown the same
	readTime  = 5 * time.Second
)

// A Source knows what is read from the database and from the engine.
type Source interface {
	// Mail returns what lies in the mailboxes.
	Mail(ctx context.Context) (Mail, error)
	// Agents counts the registered agents by their health.
	Agents() map[string]int
	// Stats returns the figures of the store.
	Stats() store.Stats
	// OnServer reports whether the database is on a server.
	OnServer() bool
	// Facts returns facts about the database.
	Facts(ctx context.Context) (store.Facts, error)
	// Damage describes the damage of the database; it is empty if there is none.
	Damage() string
	// DiskUsed returns the used fraction of the file system of the data folder, from 0 to 1.
	DiskUsed() (float64, error)
}

// Mail is what lies in the mailboxes of all sessions.
type Mail struct {
	Kinds []Kind
	Dead  int64
}

// A Kind is all mailboxes of one kind.
type Kind struct {
	Name    string
	Waiting int64
	Claimed int64
	Largest int64     // messages that wait in the fullest of the mailboxes
	Oldest  time.Time // zero if nothing waits
}

// A reader makes metrics of a source. It implements prometheus.Collector.
type reader struct {
	source Source
	clock  clockwork.Clock
	log    *zap.Logger

	waiting, claimed, largest, oldest, dead    *prometheus.Desc
	wal, database, checkpoints, pauses, writer *prometheus.Desc
	lost, damaged, disk, agents                *prometheus.Desc
	server, trips                              *prometheus.Desc

	mu    sync.Mutex // guards what follows, and lets one read at a time
	mail  Mail
	facts store.Facts
	at    time.Time // when mail and facts were read; zero = never
}

func newReader(s Source, clock clockwork.Clock, log *zap.Logger) *reader {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &reader{
		source: s, clock: clock, log: log,
		waiting: desc("brokerd_mailbox_waiting", "Messages that wait, delayed and blocked ones included.", "kind"),
		claimed: desc("brokerd_mailbox_claimed", "Claimed messages.", "kind"),
		largest: desc("brokerd_mailbox_largest", "Messages that wait in the fullest mailbox.", "kind"),
		oldest:  desc("brokerd_mailbox_oldest_age_seconds", "Age of the oldest message that waits; 0 if none does.", "kind"),
		dead:    desc("brokerd_dead_letters", "Dead letters that are kept, counted up to 100,000."),

		wal:         desc("brokerd_wal_bytes", "Size of the write-ahead log."),
		database:    desc("brokerd_database_bytes", "Size of the database."),
		checkpoints: desc("brokerd_checkpoints_total", "Times that the write-ahead log was copied back into the database."),
		pauses:      desc("brokerd_checkpoint_pause_seconds_total", "Time for which nothing was written because of checkpoints."),
		writer:      desc("brokerd_writer_waiting", "Requests that wait to be written."),
		lost:        desc("brokerd_failed_commits_total", "Transactions that could not be committed."),
		damaged:     desc("brokerd_database_damaged", "1 if the database is damaged, so that the broker refuses all changes."),
		disk:        desc("brokerd_disk_used_ratio", "Used fraction of the file system of the data folder."),

		server: desc("brokerd_database_server",
			"1 if the database is on a PostgreSQL server, 0 with SQLite. standby says whether a commit waits for one.", "standby"),
		trips: desc("brokerd_database_round_trips_total", "Times that the writer has waited for the PostgreSQL server."),

		agents: desc("brokerd_agents", "Registered agents.", "health"),
	}
}

// Describe implements prometheus.Collector.
func (r *reader) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		r.waiting, r.claimed, r.largest, r.oldest, r.dead,
		r.wal, r.database, r.checkpoints, r.pauses, r.writer, r.lost, r.damaged, r.disk, r.agents, r.server, r.trips,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (r *reader) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	s := r.source.Stats()
	gauge(r.wal, float64(s.LogBytes))
	gauge(r.writer, float64(s.Waiting))
	counter(r.checkpoints, float64(s.Checkpoints))
	counter(r.pauses, s.CheckpointTime.Seconds())
	counter(r.lost, float64(s.Lost))
	damaged := 0.0
	if r.source.Damage() != "" {
		damaged = 1
	}
	gauge(r.damaged, damaged)
	if used, err := r.source.DiskUsed(); err == nil {
		gauge(r.disk, used)
	} else {
		r.log.Warn("the use of the disk cannot be read", zap.Error(err))
	}
	for health, n := range r.source.Agents() {
		gauge(r.agents, float64(n), health)
	}
	mail, facts, err := r.read()
	if err != nil {
		r.log.Warn("metrics of the database cannot be read", zap.Error(err))
		out <- prometheus.NewInvalidMetric(r.waiting, err)
		return
	}
	gauge(r.database, float64(facts.Bytes))
	server := 0.0
	if r.source.OnServer() {
		server = 1
	}
	gauge(r.server, server, map[bool]string{true: "synchronous", false: "none"}[facts.Standby])
	counter(r.trips, float64(facts.RoundTrips))
	now := r.clock.Now()
	for _, k := range mail.Kinds {
		gauge(r.waiting, float64(k.Waiting), k.Name)
		gauge(r.claimed, float64(k.Claimed), k.Name)
		gauge(r.largest, float64(k.Largest), k.Name)
		age := 0.0
		if !k.Oldest.IsZero() {
			age = max(0, now.Sub(k.Oldest).Seconds())
		}
		gauge(r.oldest, age, k.Name)
	}
	gauge(r.dead, float64(mail.Dead))
}

// read returns what lies in the mailboxes, and the facts about the database, as they were a second ago at most.
func (r *reader) read() (Mail, store.Facts, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if age := now.Sub(r.at); !r.at.IsZero() && age >= 0 && age < readEvery {
		return r.mail, r.facts, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	mail, err := r.source.Mail(ctx)
	if err != nil {
		return Mail{}, store.Facts{}, err
	}
	facts, err := r.source.Facts(ctx)
	if err != nil {
		return Mail{}, store.Facts{}, err
	}
	r.mail, r.facts, r.at = mail, facts, now
	return mail, facts, nil
}
