package bridge_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// awaitFinding waits until explain has a finding about a bridge with a severity and a text, or for "" has none.
func (d *team) awaitFinding(about *pb.ExplainRequest, severity pb.FindingSeverity, text string) *pb.Finding {
	d.t.Helper()
	var found *pb.Finding
	d.awaitEvents("explain says: "+text, func(ctx context.Context) bool {
		out, err := pb.NewAdminServiceClient(d.broker.Operator()).Explain(ctx, about)
		apptest.NoError(d.t, err)
		found = nil
		for _, f := range out.GetFindings() {
			if strings.HasPrefix(f.GetSubject(), "bridge ") && (text == "" || strings.Contains(f.GetSummary(), text)) {
				found = f
			}
		}
		return (found != nil) == (text != "")
	})
	if found != nil && found.GetSeverity() != severity {
		d.t.Errorf("the severity of %v is not %v", found, severity)
	}
	return found
}

func TestHealth_RejectedFileIsAWarningUntilItIsRemoved(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"jsonl", "maildir", "agent-messages"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			root := d.empty("scout")
			stop := d.start()
			d.awaitAgent("scout")
			name := d.put(refusedFile{name: "m", to: "laed"})
			everything := &pb.ExplainRequest{}
			f := d.awaitFinding(everything, pb.FindingSeverity_FINDING_SEVERITY_WARNING, `no agent "laed"`)
			if !strings.Contains(f.GetSummary(), "1 rejected file") || !strings.Contains(f.GetReasons()[0], name) || f.GetSince() == nil {
				t.Errorf("the finding is %v", f)
			}
			stop()
			d.start()
			d.put(refusedFile{name: "m2", to: "laed"})
			d.awaitFinding(everything, pb.FindingSeverity_FINDING_SEVERITY_WARNING, "2 rejected files")
			apptest.NoError(t, os.RemoveAll(filepath.Join(d.dir, root, "rejected")))
			d.awaitFinding(everything, 0, "")
		})
	}
}

func TestHealth_BridgeThatWaitsIsAnErrorUntilItSucceeds(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"jsonl", "maildir", "agent-messages"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			lead := d.broker.Registered("lead", "lead")
			d.empty("scout")
			d.start()
			d.awaitAgent("scout")
			d.configure(&pb.SessionSettings{SendRate: proto.Float64(0.001), SendBurst: proto.Int32(1)})
			d.put(refusedFile{name: "m1"})
			d.put(refusedFile{name: "m2"})
			d.claim(lead, 1)
			d.awaitFinding(&pb.ExplainRequest{}, pb.FindingSeverity_FINDING_SEVERITY_ERROR, "messages a second")
			if format == "maildir" { // the mail does not wait for the files
				d.awaitFinding(&pb.ExplainRequest{Subject: &pb.ExplainRequest_Agent{Agent: "scout"}},
					pb.FindingSeverity_FINDING_SEVERITY_ERROR, "of scout: ")
				d.send(lead, toAgent("scout", "mail"))
				d.awaitFiles("messages/inbox/scout", 1)
			}
			d.configure(&pb.SessionSettings{SendRate: proto.Float64(0)})
			d.claim(lead, 1)
			d.awaitFinding(&pb.ExplainRequest{}, 0, "")
		})
	}
}

func TestHealth_ReportOfAnAgentIsNoFinding(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	d.broker.Registered("lead", "lead")
	_, err := pb.NewStateServiceClient(d.broker.Conn("lead")).PutState(t.Context(), &pb.PutStateRequest{
		Namespace: "bridge", Key: "health/x", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{
			StringValue: `{"folder": "/x", "rejected": 1, "reason": "run this command"}`}}})
	apptest.NoError(t, err)
	d.awaitFinding(&pb.ExplainRequest{}, 0, "")
}
