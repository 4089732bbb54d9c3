package diskguard

import (
	"fmt"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// fullBelow is how many free bytes are less than a transaction may need.
const fullBelow = 64 << 10

// Explain reports a disk that is nearly full, or full. It reads the usage of the disk each time.
func (g *Gauge) Explain(_ store.Querier, about finding.Question) ([]finding.Finding, error) {
	if about.Kind != finding.Everything {
		return nil, nil
	}
	used, err := g.share()
	if err != nil || used < warnAt {
		return nil, nil // a failure to read it was logged
	}
	f := finding.Finding{Severity: finding.Warning, Subject: "disk", Since: about.Now,
		Summary: fmt.Sprintf("%d %% of the disk with the data folder is used (a warning from %d %% on)", int(used*100),
			int(warnAt*100)),
		Reasons: []string{fmt.Sprintf("from %d %% on, the broker refuses to send; reading and acknowledging continue",
			int(refuseAt*100))},
		Calls: []calls.Call{calls.Do(&pb.GetStatusRequest{}), calls.Do(&pb.GetSessionRequest{})}}
	if used >= refuseAt {
		f.Severity = finding.Error
		f.Reasons = []string{fmt.Sprintf("the broker refuses to send until it is below %d %%; "+
			"reading and acknowledging continue", int(refuseAt*100))}
	}
	if _, free, err := bytesOf(g.dir); err == nil && free < fullBelow {
		f.Summary = "the disk with the data folder is full"
		f.Reasons = []string{"nothing can be sent, and acknowledgements and deletions may fail, until other files of the disk are removed; " +
			"reading continues"}
		f.Calls = nil
	}
	return []finding.Finding{f}, nil
}
