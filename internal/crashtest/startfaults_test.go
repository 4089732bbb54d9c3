package crashtest_test

import (
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/crashtest/faultvfs"
	"brokerd/internal/testkit"
)

// firstOperations are those of a first start that make the database file and switch it to the write-ahead log.
const firstOperations = 16

// A first start makes the database. Whatever fails in it, the daemon says why and the next start
// succeeds on the same folder. FAULT_STEP (60) is as in the test of the script; the test tries each of
// the firstOperations.
func TestFaults_AFirstStartThatFailsCanBeRepeated(t *testing.T) {
	t.Parallel()
	step := int(fromEnvironment(t, "FAULT_STEP", 60))
	program := buildFaultd(t)
	trace := traceOfFirstStart(t, program)
	tried, failed, survived := 0, 0, 0
	for at := 1; at <= len(trace); at++ {
		if at > firstOperations && at%step != 0 {
			continue
		}
		tried++
		letter := trace[at-1]
		faults := []faultvfs.Fault{faultvfs.PowerCut, faultvfs.DiskFull}
		if strings.ContainsRune("sS", rune(letter)) {
			faults[1] = faultvfs.SyncFail
		}
		for _, fault := range faults {
			if failedFirstStart(t, program, faultvfs.Plan{Fault: fault, At: int64(at), Lasting: true}) {
				failed++
			} else {
				survived++
			}
			if t.Failed() {
				t.Fatalf("%s at operation %d of a first start (%c)", fault, at, letter)
			}
		}
	}
	t.Logf("%d of the %d writes and syncs of a first start failed, with power cuts: %d starts failed, %d continued; each folder could be used",
		tried, len(trace), failed, survived)
	if failed == 0 {
		t.Error("no start has failed")
	}
}

func traceOfFirstStart(t *testing.T, program string) string {
	t.Helper()
	f := newFaulty(t, program, "full")
	testkit.NoError(t, f.start(t.Context()))
	defer f.kill()
	return f.counts().Trace
}

// failedFirstStart starts a daemon with a fault, and then without one. It reports whether the first start failed.
func failedFirstStart(t *testing.T, program string, plan faultvfs.Plan) bool {
	t.Helper()
	f := newFaulty(t, program, "full")
	err := f.launch(t.Context(), "full", plan)
	f.kill()
	if err != nil && plan.Fault != faultvfs.PowerCut && !strings.Contains(f.Stderr(), "disk") {
		t.Errorf("the reason of the failure is not named: %v", err)
	}
	if err := f.start(t.Context()); err != nil {
		t.Errorf("the next start: %v", err)
		return true
	}
	found, checked := f.admin.CheckDatabase(t.Context(), &pb.CheckDatabaseRequest{})
	if checked != nil || len(found.GetProblems()) > 0 {
		t.Errorf("the database is not sound: %q, %v", found.GetProblems(), checked)
	}
	if err := f.terminate(); err != nil {
		t.Error(err)
	}
	return err != nil
}
