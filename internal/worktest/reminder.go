// Package worktest shows in tests what a new kind of joint work needs: reminders, with all that votes or handoffs have.
package worktest

import (
	"context"
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/internal/agents"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
	pb "brokerd/internal/worktest/reminder/v1"
)

const (
	pending = pb.ReminderState_REMINDER_STATE_PENDING
	done    = pb.ReminderState_REMINDER_STATE_DONE

	mostPending = 3 // per session
)

// moves are the calls that a state permits.
var moves = work.Moves[pb.ReminderState]{pending: {"confirm"}}

// kind is what the table knows of reminders.
var kind = work.Kind[*pb.Reminder]{
	Number: 99, Noun: "reminder", Letter: "r", Title: (*pb.Reminder).GetText,
	Final: []protoreflect.EnumNumber{done.Number()},
	Columns: func(r *pb.Reminder) work.Columns {
		c := work.Columns{State: r.State.Number(), Opener: r.Opener, Finished: work.Time(r.DoneAt)}
		if r.State == pending {
			c.Agent, c.Due = r.Agent, work.Time(r.DueAt)
		}
		return c
	},
}

// A Service keeps the reminders of all sessions.
type Service struct {
	pb.UnimplementedReminderServiceServer
	*work.Table[*pb.Reminder]
}

func newService(d *work.Desk) *Service {
	s, k := &Service{}, kind
	k.Due = func(t *work.Tx, r *pb.Reminder) error { return s.end(t, r, "reminder.expired") }
	s.Table = work.NewTable(d, k)
	return s
}

// SetReminder implements pb.ReminderServiceServer.
func (s *Service) SetReminder(ctx context.Context, in *pb.SetReminderRequest) (*pb.SetReminderResponse, error) {
	r, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Reminder, error) {
		n, err := s.CountOpen(t, t.Session.ID)
		if err == nil && n >= mostPending {
			err = fault.New(fault.Exhausted, "TOO_MANY_REMINDERS", "the session has %d pending reminders: confirm some", n)
		}
		if err == nil {
			err = s.Known(t, t.Session.ID, in.GetAgent())
		}
		if err != nil {
			return nil, err
		}
		r := &pb.Reminder{State: pending, Opener: t.Actor.Name, Agent: in.GetAgent(), Text: in.GetText(), DueAt: in.GetDueAt(),
			Importance: in.GetImportance()}
		r.Revision, err = s.Append(t, r, work.Event{Type: "reminder.set", Summary: r.Text, Details: map[string]any{"agent": r.Agent}})
		if err != nil {
			return nil, err
		}
		r.Id = work.ID(s.Letter, r.Revision)
		return r, s.Add(t, r)
	})
	return work.Answer(err, &pb.SetReminderResponse{Reminder: r})
}

// ConfirmReminder implements pb.ReminderServiceServer.
func (s *Service) ConfirmReminder(ctx context.Context, in *pb.ConfirmReminderRequest) (*pb.ConfirmReminderResponse, error) {
	r, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Reminder, error) {
		r, err := s.Get(t, t.Session.ID, in.GetId())
		if err != nil {
			return nil, err
		}
		if !moves.Allows(r.State, "confirm") {
			return nil, fault.New(fault.Precondition, "REMINDER_DONE", "the reminder %s is done", r.Id)
		}
		return r, s.end(t, r, "reminder.confirmed")
	})
	return work.Answer(err, &pb.ConfirmReminderResponse{Reminder: r})
}

func (s *Service) end(t *work.Tx, r *pb.Reminder, event string) (err error) {
	r.State, r.DoneAt = done, work.Stamp(t.Now())
	if r.Revision, err = s.Append(t, r, work.Event{Type: event, Summary: r.Text, Details: map[string]any{}}); err != nil {
		return err
	}
	return s.Put(t, r)
}

// GetReminder implements pb.ReminderServiceServer.
func (s *Service) GetReminder(ctx context.Context, in *pb.GetReminderRequest) (*pb.GetReminderResponse, error) {
	r, err := s.Await(ctx, in.GetId(), in.GetWait().AsDuration(), func(r *pb.Reminder) bool { return r.State == done })
	return work.Answer(err, &pb.GetReminderResponse{Reminder: r})
}

// ListReminders implements pb.ReminderServiceServer.
func (s *Service) ListReminders(ctx context.Context, in *pb.ListRemindersRequest) (*pb.ListRemindersResponse, error) {
	var f work.Filter[*pb.Reminder]
	for _, state := range in.GetStates() {
		f.States = append(f.States, state.Number())
	}
	l, err := s.List(ctx, in, func(store.Querier, directory.Session) (work.Filter[*pb.Reminder], error) { return f, nil })
	return work.Answer(err, &pb.ListRemindersResponse{Reminders: l.Items, NextPageToken: l.Next})
}

// Explain says of whom a reminder awaits something.
func (s *Service) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	list, err := s.Open(q, about.Session, work.Filter[*pb.Reminder]{}, mostPending)
	if err != nil {
		return nil, err
	}
	concerns := func(r *pb.Reminder) bool { return about.Kind != finding.Agent || r.Agent == about.Name }
	return work.Findings(&about, list, mostPending, concerns, func(r *pb.Reminder) (finding.Finding, error) {
		return finding.Finding{Severity: finding.Warning, Subject: "reminder " + r.Id, Summary: r.Agent + " has to confirm: " + r.Text}, nil
	})
}

// Serve serves the reminders of the agents a and b on loopback, from a new store.
func Serve(t testing.TB, clock clockwork.Clock) (*Service, *store.Store, *grpc.ClientConn) {
	t.Helper()
	st := testkit.Store(t, t.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		agents.Migrations(), work.Migrations())
	testkit.Agents(t, st, "", "a", "b")
	s := newService(&work.Desk{
		Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(), Clock: clock, Log: zap.NewNop(),
	})
	conn, _ := testkit.Serve(t, func(r grpc.ServiceRegistrar) { pb.RegisterReminderServiceServer(r, s) })
	return s, st, conn
}
