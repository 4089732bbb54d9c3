package importer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

const (
	entryRows   = 500              // rows of an entry of the ledger
	noteEvery   = 10 * time.Second // between two lines about the progress
	longEnough  = 10 * time.Second // a wait for the rate that is worth a warning
	callTimeout = time.Minute      // of a call that does not wait for the sender's rate
)

// Options say what Run imports.
type Options struct {
	File    string
	Connect func(context.Context) (*client.Client, error) // as an operator; Run calls it after it has checked the file
	DryRun  bool                                          // change nothing
	Log     func(line string)                             // warnings and progress
}

// run is one import.
type run struct {
	Options
	broker *client.Client // speaks as system
	source *source
	ledger *ledger
	roster *roster
	report *Report
	kept   *pages
	noted  time.Time // when the last line about the progress was logged
}

// Run imports a file and returns what it has done. A row that the broker refuses is skipped. Another error ends the
// import; running it again continues it. Errors are FileErrors, ErrBusy, those of Connect and the API, and those
// of temporary files.
func Run(ctx context.Context, o Options) (report *Report, err error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "brokerd-import-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	m := &run{Options: o, noted: began, report: &Report{
		File: o.File, DryRun: o.DryRun, Skipped: []Skipped{}, Artifacts: []Artifact{}, Warnings: []string{}}}
	if m.source, err = openSource(ctx, o.File, dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.source.db.Close()) }()
	connection, err := o.Connect(ctx)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	m.broker = connection.As("")
	if err := m.readSession(ctx); err != nil {
		return nil, err
	}
	if m.ledger, err = openLedger(ctx, m.broker, dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.ledger.db.Close()) }()
	if m.kept, err = newPages(dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.kept.close()) }()
	m.roster = &roster{broker: m.broker, known: map[string]bool{}}
	for _, k := range m.kinds() {
		if err := m.importKind(ctx, k); err != nil {
			return nil, err
		}
	}
	if err := m.keepFinished(ctx); err != nil {
		return nil, err
	}
	m.report.Artifacts, err = m.kept.upload(ctx, m.broker, filepath.Base(o.File), o.DryRun)
	m.report.Seconds = time.Since(began).Seconds()
	return m.report, err
}

// readSession refuses a caller that is no operator, reads the session's limits, and compares the file with them.
func (m *run) readSession(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := m.broker.Credentials().ListCredentials(ctx, &pb.ListCredentialsRequest{PageSize: 1}); err != nil {
		return err // only operators may make this call
	}
	out, err := m.broker.Sessions().GetSession(ctx, &pb.GetSessionRequest{})
	if err != nil {
		return err
	}
	session := out.GetSession()
	m.report.Session = session.GetName()
	sender, sends, err := m.source.most(ctx, "from_agent")
	if err != nil {
		return err
	}
	recipient, waiting, err := m.source.most(ctx, "to_agent")
	if err != nil {
		return err
	}
	settings := session.GetSettings()
	if limit := settings.GetMailboxLimit(); limit > 0 && waiting > limit {
		m.warn("%q has %d unfinished messages, and a mailbox of the session has %d: before the import, "+
			"raise it with brokerctl session configure --mailbox-limit N", clip(recipient, 128), waiting, limit)
	}
	if rate := settings.GetSendRate(); rate > 0 {
		takes := time.Duration(float64(sends-int64(settings.GetSendBurst())) / rate * float64(time.Second))
		if takes > longEnough {
			m.warn("%q has %d unfinished messages, and an agent of the session may send %v a second. The "+
				"import keeps to that: up to %v. To import faster, run brokerctl session configure --send-rate 0 before and "+
				"--send-rate %[3]v after", clip(sender, 128), sends, rate, takes.Round(time.Second))
		}
	}
	return nil
}

func (m *run) warn(format string, args ...any) {
	warning := fmt.Sprintf(format, args...)
	m.report.Warnings = append(m.report.Warnings, warning)
	m.Log("warning: " + warning)
}

// A kind says how rows of a table are imported.
type kind struct {
	name  string
	table table
	id    func(r row) string
	keyed []string // columns whose change makes another row
	// local decides on a row without the broker; an empty outcome = send it.
	local func(r row) outcome
	// send imports a row. Of an attempt that is not 0, an earlier import may have done a part of it.
	send func(ctx context.Context, r row, k key, a attempt) (outcome, error)
}

// An attempt says in which entry of the ledger a row is sent first.
type attempt struct {
	number int64
	again  bool // an earlier import has ended in that entry
}

// An outcome is what becomes of a row.
type outcome struct {
	as     fate
	reason string // of skipped, and of some that are kept
}

type fate int

// The fates of a row.
const (
	undecided fate = iota
	imported
	alreadyThere
	expired
	noSubscribers
	kept
	skipped
)

func skip(format string, args ...any) outcome { return outcome{skipped, fmt.Sprintf(format, args...)} }

func (m *run) kinds() []kind {
	return []kind{
		{kindAgents, agentRows, idOf("agent_id"), []string{"agent_id"}, localAgent, m.sendAgent},
		{kindSubscriptions, subscriptionRows, idOf("channel_name", "agent_id"), []string{"channel_name", "agent_id"},
			localSubscription, m.sendSubscription},
		{kindMessages, unfinishedRows, idOf("id"),
			[]string{"id", "type", "timestamp", "from_agent", "to_agent", "channel", "payload"}, localMessage, m.sendMessage},
		{kindDeadLetters, deadRows, idOf("id"), []string{"id", "original_message"}, localDead, m.sendDead},
	}
}

func idOf(columns ...string) func(row) string {
	return func(r row) string {
		id := r.text(columns[0])
		for _, c := range columns[1:] {
			id += " " + r.text(c)
		}
		return id
	}
}

// A place is a row that waits for the next entry of the ledger.
type place struct {
	number int64
	key    key
	before int64 // the attempt of an earlier import; 0 = none
}

// importKind imports the rows of a kind in their order.
func (m *run) importKind(ctx context.Context, k kind) error {
	var waiting []place
	count := m.report.count(k.name)
	err := m.source.each(ctx, k.table, func(number int64, r row) error {
		count.Read++
		m.progress(k, count)
		p := place{number: number, key: r.keyOf(k.table, k.keyed...)}
		sent, before, err := m.ledger.find(ctx, p.key)
		if err != nil {
			return err
		}
		var done outcome
		switch {
		case sent:
			done.as = alreadyThere
		case before == 0: // or it may have been sent before it expired
			done = k.local(r)
		}
		if m.DryRun && done.as == undecided {
			done.as = imported
		}
		if done.as != undecided {
			return m.settle(k, r, done)
		}
		p.before = before
		if waiting = append(waiting, p); len(waiting) < entryRows {
			return nil
		}
		err = m.sendAll(ctx, k, waiting)
		waiting = waiting[:0]
		return err
	})
	if err != nil || len(waiting) == 0 {
		return err
	}
	return m.sendAll(ctx, k, waiting)
}

// sendAll sends rows between the two writes of an entry of the ledger.
func (m *run) sendAll(ctx context.Context, k kind, places []place) error {
	keys := make([]uuid.UUID, len(places))
	for i, p := range places {
		keys[i] = p.key
	}
	number, err := m.ledger.begin(ctx, keys)
	if err != nil {
		return err
	}
	sent := make([]uuid.UUID, 0, len(places))
	seen := map[key]bool{}
	for _, p := range places {
		r, err := m.source.row(ctx, k.table, p.number)
		if err != nil {
			return err
		}
		done := outcome{as: alreadyThere}
		if !seen[p.key] { // a table without a primary key can have a row twice
			a := attempt{number: number}
			if p.before != 0 {
				a = attempt{p.before, true}
			}
			if done, err = k.send(ctx, r, p.key, a); err != nil {
				return err
			}
		}
		switch done.as {
		case imported, alreadyThere, noSubscribers:
			sent, seen[p.key] = append(sent, p.key), true
		}
		if err := m.settle(k, r, done); err != nil {
			return err
		}
	}
	return m.ledger.end(ctx, number, sent)
}

// settle counts a row, and keeps it if it is not sent.
func (m *run) settle(k kind, r row, done outcome) error {
	count := m.report.count(k.name)
	switch done.as {
	case imported:
		if count.Imported++; done.reason != "" {
			m.report.skip(k.name, k.id(r), done.reason)
		}
	case alreadyThere:
		count.AlreadyThere++
	case noSubscribers:
		count.NoSubscribers++
	case expired:
		count.Expired++
		return m.kept.history.add(r)
	case kept:
		count.Kept++
		m.report.skip(k.name, k.id(r), done.reason)
		return m.kept.history.add(r)
	case skipped:
		count.Skipped++
		m.report.skip(k.name, k.id(r), done.reason)
		return m.kept.skipped.add(row{"kind": k.name, "reason": done.reason, "row": r})
	}
	return nil
}

// keepFinished keeps the messages that are not to be delivered again.
func (m *run) keepFinished(ctx context.Context) error {
	count := m.report.count(kindFinished)
	return m.source.each(ctx, finishedRows, func(_ int64, r row) error {
		count.Read++
		count.Kept++
		return m.kept.history.add(r)
	})
}

// progress logs how far the import is, now and then.
func (m *run) progress(k kind, count *Count) {
	if time.Since(m.noted) >= noteEvery {
		m.noted = time.Now()
		m.Log(fmt.Sprintf("%s: %d read", k.name, count.Read))
	}
}
