package crashtest_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/crashtest/faultvfs"
	"brokerd/internal/testkit"
)

// A faultCase is one run of the script with a fault.
type faultCase struct {
	plan   faultvfs.Plan
	reason string // of the refusals
}

// A faultSuite has what the runs share.
type faultSuite struct {
	*testing.T
	program  string
	template string     // a data folder in which the script may begin
	events   [][]string // the log before each step of a run without a fault, and after the last
	trace    string     // of that run's operations
	refusals map[faultvfs.Fault]int
}

// An error of each kind hits each of the first FAULT_OPERATIONS (300) writes and syncs of the script;
// with FAULT_STEP (60) above 1, a write in so many and a few syncs.
func TestFaults_ChangesAreRefusedOrDoneAndNothingConfirmedIsLost(t *testing.T) {
	t.Parallel()
	operations := int(fromEnvironment(t, "FAULT_OPERATIONS", 300))
	step := int(fromEnvironment(t, "FAULT_STEP", 60))
	s := newFaultSuite(t)
	if len(s.trace) < operations {
		t.Fatalf("the script has %d operations, fewer than %d", len(s.trace), operations)
	}
	hit, numbers := map[rune]int{}, map[rune]int{}
	for i, letter := range s.trace[:operations] {
		numbers[letter]++
		every := step
		if letter == 's' {
			every = (step + 9) / 10 // there is a sync for every 10 writes or more
		}
		if numbers[letter]%every != 0 {
			continue
		}
		hit[letter]++
		for _, c := range s.cases(i + 1) {
			s.run(c)
			if t.Failed() {
				t.Fatalf("%+v", c)
			}
		}
	}
	for _, fault := range []faultvfs.Fault{faultvfs.DiskFull, faultvfs.IOError, faultvfs.SyncFail} {
		if s.refusals[fault] == 0 {
			t.Errorf("no call has met the fault %q", fault)
		}
	}
	t.Logf("faults at %d of %d writes and %d of %d syncs, the first %d of the script; refused calls: %v; nothing confirmed was lost",
		hit['w'], numbers['w'], hit['s'], numbers['s'], operations, s.refusals)
}

// newFaultSuite prepares a data folder and runs the script once without a fault.
func newFaultSuite(t *testing.T) *faultSuite {
	s := &faultSuite{T: t, program: buildFaultd(t), template: t.TempDir(), refusals: map[faultvfs.Fault]int{}}
	ctx := t.Context()
	f := newFaulty(t, s.program, "full")
	testkit.NoError(t, f.start(ctx))
	testkit.NoError(t, registerOdds(ctx, f.daemon))
	testkit.NoError(t, f.terminate())
	copyFolder(t, f.Dir(), s.template)
	testkit.NoError(t, f.start(ctx))
	f.plan(faultvfs.Plan{})
	play := newScript(t)
	note := func() {
		events, err := play.events(ctx, f.daemon)
		testkit.NoError(t, err)
		s.events = append(s.events, events)
	}
	for i, step := range play.steps {
		note()
		if err := step(ctx, f.daemon); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	note()
	s.trace = f.counts().Trace
	testkit.NoError(t, play.verify(ctx, f.daemon))
	return s
}

func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("copy the data folder: %v: %s", err, out)
	}
}

// cases returns the faults of one operation: a full disk until there is space again, an I/O error
// once, or a failed sync. Every fifth operation also meets a disk that is full once, and one that
// fails for longer.
func (s *faultSuite) cases(at int) []faultCase {
	n := int64(at)
	if s.trace[at-1] == 's' {
		return []faultCase{{faultvfs.Plan{Fault: faultvfs.SyncFail, At: n}, "IO_ERROR"}}
	}
	all := []faultCase{
		{faultvfs.Plan{Fault: faultvfs.DiskFull, At: n, Lasting: true}, "DISK_FULL"},
		{faultvfs.Plan{Fault: faultvfs.IOError, At: n}, "IO_ERROR"},
	}
	if at%5 == 0 {
		all = append(all,
			faultCase{faultvfs.Plan{Fault: faultvfs.DiskFull, At: n}, "DISK_FULL"},
			faultCase{faultvfs.Plan{Fault: faultvfs.IOError, At: n, Lasting: true}, "IO_ERROR"})
	}
	return all
}

// run plays the script with a fault.
func (s *faultSuite) run(c faultCase) {
	s.Helper()
	ctx := s.Context()
	f := newFaulty(s.T, s.program, "full")
	defer f.kill()
	copyFolder(s.T, s.template, f.Dir())
	testkit.NoError(s, f.start(ctx))
	f.plan(c.plan)
	play := newScript(s.T)
	refusals := 0
	for i := 0; i < len(play.steps); i++ {
		err := play.steps[i](ctx, f.daemon)
		if err == nil {
			continue
		}
		refusals++
		if c.plan.Fault == faultvfs.SyncFail {
			s.endedBySync(f, err)
		} else {
			s.refused(f, c, i, play, err)
		}
		i-- // again, with the same request id
		if refusals > 1 {
			s.Fatalf("step %d is refused again: %v", i, err)
		}
	}
	s.refusals[c.plan.Fault] += refusals
	s.compare(f, play)
	f.kill()
	testkit.NoError(s, f.start(ctx))
	s.compare(f, play)
	if err := f.terminate(); err != nil {
		s.Error(err)
	}
	if err := f.Check(ctx); err != nil {
		s.Error(err)
	}
	_ = os.RemoveAll(f.Dir()) // hundreds of runs would fill the disk
}

// refused checks a refusal at a step and what the broker does meanwhile, and mends the disk.
func (s *faultSuite) refused(f *faulty, c faultCase, i int, play *script, err error) {
	s.Helper()
	s.wantReason(i, err, c.reason)
	if c.plan.Lasting {
		s.wantReason(i, play.steps[i](s.Context(), f.daemon), c.reason)
	}
	got, err := play.events(s.Context(), f.daemon)
	if err != nil {
		s.Fatalf("step %d: a read while nothing can be written: %v", i, err)
	}
	if diff := cmp.Diff(s.events[i], got); diff != "" {
		s.Errorf("step %d: the log after a refusal (-want +got):\n%s", i, diff)
	}
	if f.counts().Failed == 0 {
		s.Errorf("step %d was refused, and no operation has failed", i)
	}
	if c.plan.Lasting {
		f.plan(faultvfs.Plan{})
	}
}

func (s *faultSuite) wantReason(i int, err error, reason string) {
	s.Helper()
	if status.Code(err) != codes.Unavailable || testkit.Reason(err) != reason {
		s.Fatalf("step %d: %v (reason %q), want UNAVAILABLE with %s", i, err, testkit.Reason(err), reason)
	}
}

// endedBySync waits for the end of a process whose sync has failed, and starts another.
func (s *faultSuite) endedBySync(f *faulty, err error) {
	s.Helper()
	if status.Code(err) != codes.Unavailable {
		s.Errorf("the call during a failed sync: %v", err)
	}
	ended := f.ended(s.Context())
	if exit := (*exec.ExitError)(nil); !errors.As(ended, &exit) || !strings.Contains(f.Stderr(), "sync failed") {
		s.Fatalf("after a failed sync the process ended with %v: %s", ended, f.Stderr())
	}
	testkit.NoError(s, f.start(s.Context()))
}

// compare checks that the script's changes are there, each once, and nothing else.
func (s *faultSuite) compare(f *faulty, play *script) {
	s.Helper()
	got, err := play.events(s.Context(), f.daemon)
	testkit.NoError(s, err)
	if diff := cmp.Diff(s.events[len(s.events)-1], got); diff != "" {
		s.Errorf("the log at the end (-want +got):\n%s", diff)
	}
	if err := play.verify(s.Context(), f.daemon); err != nil {
		s.Error(err)
	}
	s.sound(f.daemon)
}

func (s *faultSuite) sound(d *daemon) {
	s.Helper()
	found, err := d.admin.CheckDatabase(s.Context(), &pb.CheckDatabaseRequest{})
	if err != nil || len(found.GetProblems()) > 0 {
		s.Errorf("the database is not sound: %q, %v", found.GetProblems(), err)
	}
}
