package overview

import (
	"context"
	"fmt"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The limits of a frame.
const (
	mostMailboxes = 100
	mostAgents    = 500
	mostEvents    = 40
	mostActivity  = 120 // bytes
)

// Facts are the contents of a frame.
type Facts struct {
	Session   string
	Closed    bool
	Mail      work.Mailbox // of all mailboxes; the dead letters up to 10,000
	Crew      Crew
	Shared    work.Coordination
	Rates     Rates
	Mailboxes []Mailbox
	Agents    []Agent
	Events    []events.Event // newest first
	Findings  []finding.Finding
	Time      time.Time
	Revision  int64
}

// A Mailbox is one that has something in it.
type Mailbox struct {
	work.Mailbox
	Oldest time.Time // when the oldest message was sent that waits to be claimed; zero = none
}

// A Crew counts the registered agents and their messages.
type Crew struct {
	directory.Pulse
	OperatorMail int64 // unfinished
}

// An Agent is a registered agent.
type Agent struct {
	Name, Role string
	Status     int // a number of the API
	Health     int // a number of the API
	State      string
	Silent     time.Time // since when it is late, failed or asleep; zero = it is not
	Halted     bool
	Activity   string
	Claims     int64
	Locks      int64 // and tokens
	Waiting    int64 // in its own mailbox
}

// Rates are per second.
type Rates struct{ Sent, Received, Processed, Revisions float64 }

// A past is what a reader keeps from one frame to the next.
type past struct {
	session  int64          // row id; 0 before the first frame
	revision int64          // up to which events has the events
	events   []events.Event // newest first
	samples  []sample       // oldest first

	findings  []finding.Finding
	explainAt time.Time // when the findings are to be refreshed
}

// read reads the contents of a frame from one snapshot.
func (r *reader) read(ctx context.Context, now time.Time) (*Facts, error) {
	f := &Facts{Session: r.session, Time: now}
	p := &r.past
	err := r.Store.Read(ctx, func(s *store.Snapshot) error {
		session, err := r.Directory.Session(s, r.session)
		if err != nil {
			return err
		}
		id := session.ID
		if p.session != 0 && p.session != id {
			return fault.Missing("session", r.session, "the session %q was deleted; another has its name now", r.session)
		}
		p.session, f.Closed, f.Revision = id, session.Closed(), s.Revision()
		if f.Mailboxes, f.Mail, err = r.Sources.Mail(s, id, mostMailboxes); err != nil {
			return err
		}
		if f.Agents, f.Crew, err = r.Sources.Agents(s, id, r.session, mostAgents); err != nil {
			return err
		}
		if f.Shared, err = r.Sources.Coordination(s, id); err != nil {
			return err
		}
		newer, err := r.Hub.Events.Newest(s, id, p.revision, mostEvents)
		if err != nil {
			return err
		}
		p.events = append(newer, p.events[:min(len(p.events), mostEvents-len(newer))]...)
		p.revision = f.Revision
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read overview: %w", err)
	}
	f.Events, f.Findings = p.events, p.findings
	f.Rates = p.rates(sample{now, f.Crew.Sent, f.Crew.Received, f.Crew.Processed, f.Revision})
	return f, nil
}

// explain refreshes the findings, if that is due. It takes longer than the rest of a frame, so it has
// its own pause.
func (r *reader) explain(ctx context.Context) error {
	p, now := &r.past, r.Clock.Now()
	if now.Before(p.explainAt) {
		return nil
	}
	err := r.Store.Read(ctx, func(s *store.Snapshot) error {
		id, err := r.Directory.SessionID(s, r.session)
		if err != nil {
			return err
		}
		about := finding.Question{Session: id, SessionName: r.session, Now: now}
		p.findings, err = r.Sources.Explain(s, about)
		return err
	})
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	p.explainAt = now.Add(max(refresh, restFactor*r.Clock.Since(now)))
	return nil
}

const (
	rateWindow   = 5 * time.Second
	sampleApart  = 500 * time.Millisecond
	leastElapsed = time.Second // over a shorter time, a rate would be noise
)

// A sample is the counts at a time.
type sample struct {
	at                                   time.Time
	sent, received, processed, revisions int64
}

// rates returns the rates since the newest sample that is at least as old as the window, else since
// the oldest one.
func (p *past) rates(now sample) Rates {
	for len(p.samples) > 1 && now.at.Sub(p.samples[1].at) >= rateWindow {
		p.samples = p.samples[1:]
	}
	if n := len(p.samples); n == 0 || now.at.Sub(p.samples[n-1].at) >= sampleApart {
		p.samples = append(p.samples, now)
	}
	first := p.samples[0]
	elapsed := max(now.at.Sub(first.at), leastElapsed).Seconds()
	// The counts of an agent that has deregistered are missing from the sums.
	rate := func(n, before int64) float64 { return float64(max(n-before, 0)) / elapsed }
	return Rates{
		Sent: rate(now.sent, first.sent), Received: rate(now.received, first.received),
		Processed: rate(now.processed, first.processed), Revisions: rate(now.revisions, first.revisions),
	}
}
