package state_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestExplain_ABridgeHasTheCallThatRemovesItsReport(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	w.Agent("a", "builder")
	o := w.Root()
	write(o, &pb.PutStateRequest{Namespace: "bridge", Key: "health/1", Value: text(
		`{"Folder":"/srv/drop","Waits":[{"Agent":"a","Action":"read the mail","Reason":"permission denied","Since":"2026-01-02T03:04:05Z"}]}`)})
	found := apptest.Must(t, o.Explain, &pb.ExplainRequest{}).Findings
	if len(found) != 1 || found[0].Summary != "it cannot read the mail of a: permission denied" {
		t.Fatalf("explain says %v", found)
	}
	if diff := cmp.Diff([]string{
		`GetAgent {"name":"a"}`, `DeleteState {"namespace":"bridge","key":"health/1"}`,
	}, testkit.Calls(found[0].Calls)); diff != "" {
		t.Errorf("calls, wanted (-) and got (+): %s", diff)
	}
	apptest.Must(t, o.DeleteState, &pb.DeleteStateRequest{Namespace: "bridge", Key: "health/1"})
	if found := apptest.Must(t, o.Explain, &pb.ExplainRequest{}).Findings; len(found) > 0 {
		t.Errorf("without the report, explain says %v", found)
	}
}
