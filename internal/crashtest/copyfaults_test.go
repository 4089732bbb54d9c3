package crashtest_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/crashtest/faultvfs"
	"brokerd/internal/testkit"
)

// mostLarge is how many large messages a test sends at most until something has happened: 16 MiB of log is 64.
const mostLarge = 1000

// The broker copies its log into the database when it has 16 MiB. Calls do not wait for that, so a
// fault in it refuses none; a failed sync ends the process as everywhere.
func TestFaults_InTheCopyOfTheLogRefuseNoCallAndLoseNothing(t *testing.T) {
	t.Parallel()
	program := buildFaultd(t)
	for _, plan := range []faultvfs.Plan{
		{Fault: faultvfs.DiskFull, At: 1, File: faultvfs.Database, Lasting: true},
		{Fault: faultvfs.IOError, At: 100, File: faultvfs.Database},
		{Fault: faultvfs.SyncFail, At: 1, File: faultvfs.Database, Lasting: true},
	} {
		t.Run(string(plan.Fault), func(t *testing.T) {
			f := newFaulty(t, program, "normal") // so that a commit syncs nothing
			testkit.NoError(t, f.start(t.Context()))
			testkit.NoError(t, registerOdds(t.Context(), f.daemon))
			f.plan(plan)
			var sent []*pb.SendResult
			if plan.Fault == faultvfs.SyncFail {
				sent = sendLarge(t, f, sent, func() bool { return false })
				if err := f.ended(t.Context()); !strings.Contains(f.Stderr(), "sync failed") {
					t.Fatalf("after a failed sync the process ended with %v: %s", err, f.Stderr())
				}
			} else {
				sent = sendLarge(t, f, sent, func() bool { return f.counts().Failed > 0 })
				f.plan(faultvfs.Plan{File: faultvfs.Database})
				sent = sendLarge(t, f, sent, func() bool { return strings.Contains(f.counts().Trace, "S") })
				f.kill()
			}
			testkit.NoError(t, f.start(t.Context()))
			if lost := lostOf(inOdds(t.Context(), ""), t, f.daemon, sent); lost > 0 {
				t.Errorf("%d of %d confirmed messages are lost", lost, len(sent))
			}
			if err := f.terminate(); err != nil {
				t.Error(err)
			}
			if err := f.Check(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// sendLarge sends large messages until something has happened, or the connection breaks.
func sendLarge(t *testing.T, f *faulty, sent []*pb.SendResult, until func() bool) []*pb.SendResult {
	t.Helper()
	body := strings.Repeat("large ", 40<<10)
	for range mostLarge {
		answer, err := f.messages.SendMessages(inOdds(t.Context(), "asker"), &pb.SendMessagesRequest{Messages: []*pb.Message{
			{Target: toAgent("sink"), Subject: "x", Type: "work", Body: body}}})
		if status.Code(err) == codes.Unavailable && !until() {
			return sent
		}
		if err != nil {
			t.Fatalf("after %d messages: %v", len(sent), err)
		}
		sent = append(sent, answer.GetResults()...)
		if until() {
			return sent
		}
	}
	t.Fatalf("%d messages were sent, and nothing has happened", len(sent))
	return nil
}
