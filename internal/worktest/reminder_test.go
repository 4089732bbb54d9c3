package worktest_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/agents"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/idempotency"
	"brokerd/internal/jsonform"
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

// A service keeps the reminders of all sessions.
type service struct {
	pb.UnimplementedReminderServiceServer
	*work.Table[*pb.Reminder]
}

func newService(d *work.Desk) *service {
	s, k := &service{}, kind
	k.Due = func(t *work.Tx, r *pb.Reminder) error { return s.end(t, r, "reminder.expired") }
	s.Table = work.NewTable(d, k)
	return s
}

func (s *service) SetReminder(ctx context.Context, in *pb.SetReminderRequest) (*pb.SetReminderResponse, error) {
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
		r := &pb.Reminder{State: pending, Opener: t.Actor.Name, Agent: in.GetAgent(), Text: in.GetText(), DueAt: in.GetDueAt()}
		r.Revision, err = s.Append(t, r, work.Event{Type: "reminder.set", Summary: r.Text, Details: map[string]any{"agent": r.Agent}})
		if err != nil {
			return nil, err
		}
		r.Id = work.ID(s.Letter, r.Revision)
		return r, s.Add(t, r)
	})
	return work.Answer(err, &pb.SetReminderResponse{Reminder: r})
}

func (s *service) ConfirmReminder(ctx context.Context, in *pb.ConfirmReminderRequest) (*pb.ConfirmReminderResponse, error) {
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

func (s *service) end(t *work.Tx, r *pb.Reminder, event string) (err error) {
	r.State, r.DoneAt = done, work.Stamp(t.Now())
	if r.Revision, err = s.Append(t, r, work.Event{Type: event, Summary: r.Text, Details: map[string]any{}}); err != nil {
		return err
	}
	return s.Put(t, r)
}

func (s *service) GetReminder(ctx context.Context, in *pb.GetReminderRequest) (*pb.GetReminderResponse, error) {
	r, err := s.Await(ctx, in.GetId(), in.GetWait().AsDuration(), func(r *pb.Reminder) bool { return r.State == done })
	return work.Answer(err, &pb.GetReminderResponse{Reminder: r})
}

func (s *service) ListReminders(ctx context.Context, in *pb.ListRemindersRequest) (*pb.ListRemindersResponse, error) {
	var f work.Filter[*pb.Reminder]
	for _, state := range in.GetStates() {
		f.States = append(f.States, state.Number())
	}
	l, err := s.List(ctx, in, func(store.Querier, directory.Session) (work.Filter[*pb.Reminder], error) { return f, nil })
	return work.Answer(err, &pb.ListRemindersResponse{Reminders: l.Items, NextPageToken: l.Next})
}

// Explain says of whom a reminder awaits something.
func (s *service) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	list, err := s.Open(q, about.Session, work.Filter[*pb.Reminder]{}, mostPending)
	if err != nil {
		return nil, err
	}
	concerns := func(r *pb.Reminder) bool { return about.Kind != finding.Agent || r.Agent == about.Name }
	return work.Findings(&about, list, mostPending, concerns, func(r *pb.Reminder) (finding.Finding, error) {
		return finding.Finding{Severity: finding.Warning, Subject: "reminder " + r.Id, Summary: r.Agent + " has to confirm: " + r.Text}, nil
	})
}

// TestReminder_AKindOfWorkNeedsNoMoreThanThis has list, get, wait, deadlines, limits, repeated calls, archive and explain.
func TestReminder_AKindOfWorkNeedsNoMoreThanThis(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	st := testkit.Store(t, t.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		agents.Migrations(), work.Migrations())
	testkit.Agents(t, st, "", "a", "b")
	s := newService(&work.Desk{
		Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(), Clock: clock, Log: zap.NewNop(),
	})
	conn, _ := testkit.Serve(t, func(r grpc.ServiceRegistrar) { pb.RegisterReminderServiceServer(r, s) })
	api, ctx := pb.NewReminderServiceClient(conn), testkit.Agent(t.Context(), "a")
	set := func(in *pb.SetReminderRequest) *pb.Reminder {
		t.Helper()
		out, err := api.SetReminder(ctx, in)
		testkit.NoError(t, err)
		return out.GetReminder()
	}

	_, err := api.SetReminder(ctx, &pb.SetReminderRequest{Agent: "b", Text: strings.Repeat("x", 513)})
	if got := testkit.Fields(err); len(got) != 1 || got[0] != "text" {
		t.Errorf("a text of 513 bytes: %v, fields %v", err, got)
	}
	id := "0192d5a8-7b6c-7000-8000-000000000001"
	first := set(&pb.SetReminderRequest{RequestId: id, Agent: "b", Text: "one"})
	if again := set(&pb.SetReminderRequest{RequestId: id, Agent: "b", Text: "one"}); !proto.Equal(first, again) {
		t.Errorf("repeated: %v, want %v", again, first)
	}
	due := set(&pb.SetReminderRequest{Agent: "b", Text: "two", DueAt: timestamppb.New(clock.Now().Add(time.Hour))})
	third := set(&pb.SetReminderRequest{Agent: "a", Text: "three"})
	_, err = api.SetReminder(ctx, &pb.SetReminderRequest{Agent: "b", Text: "four"})
	refused(t, err, codes.ResourceExhausted, "TOO_MANY_REMINDERS")

	for want, in := range map[string]*pb.ListRemindersRequest{
		"three two one": {PageSize: 1}, "one two three": {OldestFirst: true, States: []pb.ReminderState{pending}}, "": {States: []pb.ReminderState{done}},
	} {
		var got []string
		for more := true; more; more = in.PageToken != "" {
			out, err := api.ListReminders(ctx, in)
			testkit.NoError(t, err)
			for _, r := range out.GetReminders() {
				got = append(got, r.GetText())
			}
			in.PageToken = out.GetNextPageToken()
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%v lists %v, want %s", in, got, want)
		}
	}
	testkit.NoError(t, st.Read(t.Context(), func(snap *store.Snapshot) error {
		found, err := s.Explain(snap, finding.Question{Session: 1, Kind: finding.Agent, Name: "b"})
		if len(found) != 2 || found[0].Subject != "reminder "+first.GetId() {
			t.Errorf("explained as %v", found)
		}
		return err
	}))

	wait := make(chan error, 1)
	go func() {
		_, err := api.GetReminder(ctx, &pb.GetReminderRequest{Id: due.GetId(), Wait: durationpb.New(time.Hour)})
		wait <- err
	}()
	clock.Advance(time.Hour)
	testkit.NoError(t, s.Start(t.Context())) // finds what is due
	defer s.Stop()
	testkit.NoError(t, <-wait)
	out, err := api.ConfirmReminder(ctx, &pb.ConfirmReminderRequest{Id: third.GetId()})
	testkit.NoError(t, err)
	_, err = api.ConfirmReminder(ctx, &pb.ConfirmReminderRequest{Id: third.GetId()})
	refused(t, err, codes.FailedPrecondition, "REMINDER_DONE")

	data, list := s.Data(), []work.Done(nil)
	testkit.NoError(t, st.Read(t.Context(), func(snap *store.Snapshot) (err error) {
		list, err = data.Finished(snap, 1, clock.Now(), 10)
		return err
	}))
	var line bytes.Buffer
	testkit.NoError(t, jsonform.Append(&line, out.GetReminder()))
	if len(list) != 2 || string(list[1].Line) != line.String() {
		t.Fatalf("archived as %v, want two, the second as %s", list, &line)
	}
	testkit.NoError(t, st.Write(t.Context(), func(tx *store.Tx) error { return data.Remove(tx, 1, list) }))
	_, err = api.GetReminder(ctx, &pb.GetReminderRequest{Id: third.GetId()})
	refused(t, err, codes.NotFound, "REMINDER_NOT_FOUND")
}

func refused(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	if testkit.Reason(err) != reason || !strings.Contains(err.Error(), code.String()) {
		t.Errorf("%v, want %v (%s)", err, code, reason)
	}
}
