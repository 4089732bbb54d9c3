package disk

import (
	"fmt"

	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// Explain tells of a disk that is nearly full. It looks at the disk, whenever the last look was.
func (g *Gauge) Explain(_ store.Querier, about finding.Question) ([]finding.Finding, error) {
	if about.Kind != finding.Everything {
		return nil, nil
	}
	used, err := g.used()
	if err != nil || used < warnAt {
		return nil, nil // that it cannot be found out was logged
	}
	f := finding.Finding{Severity: finding.Warning, Subject: "disk", Since: about.Now,
		Summary:  fmt.Sprintf("%d %% of the disk with the data folder is used", int(used*100)),
		Reasons:  []string{fmt.Sprintf("from %d %% on nothing can be sent; reading and acknowledging go on", int(refuseAt*100))},
		Commands: []finding.Command{{"status"}, {"session", "get"}}}
	if used >= refuseAt {
		f.Severity = finding.Error
		f.Reasons = []string{fmt.Sprintf("nothing can be sent until it is below %d %%; reading and acknowledging go on", int(refuseAt*100))}
	}
	return []finding.Finding{f}, nil
}
