package worktest_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/finding"
	"brokerd/internal/jsonform"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
	"brokerd/internal/worktest"
	pb "brokerd/internal/worktest/reminder/v1"
)

const pending, done = pb.ReminderState_REMINDER_STATE_PENDING, pb.ReminderState_REMINDER_STATE_DONE

// TestReminder_AKindOfWorkNeedsNoMoreThanThis has list, get, wait, deadlines, limits, repeated calls, archive and explain.
func TestReminder_AKindOfWorkNeedsNoMoreThanThis(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	s, st, conn := worktest.Serve(t, clock)
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
