package state

import (
	"encoding/json"
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/finding"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const (
	// bridgeNamespace is the namespace of `brokerctl bridge`. The keys health/FOLDER-ID have a bridgeReport each, while
	// the bridge of the folder has something to report.
	bridgeNamespace = "bridge"
	bridgeHealth    = "health/"
	afterHealth     = "health0" // above all keys that begin with bridgeHealth
	maxBridges      = 20        // reports that Explain reads
)

// A bridgeReport is the value of such a key. It is JSON text in a string.
type bridgeReport struct {
	Folder   string
	Waits    []bridgeWait
	Rejected int    // files in the folder rejected/
	Newest   string // the last one of these
	Reason   string // of the last one
}

// A bridgeWait is an action that the bridge tries again until it succeeds.
type bridgeWait struct {
	Agent, Action, Reason string
	Since                 time.Time
}

// Explain reports what the bridges of a session cannot do, and the files that they have rejected; for an agent, what
// its bridge cannot do for it. Agents may write the keys too, so it reads only those that an operator has written.
func (k *Keys) Explain(q store.Querier, about finding.Question) (found []finding.Finding, err error) {
	if about.Kind != finding.Everything && about.Kind != finding.Agent {
		return nil, nil
	}
	rows := q.Query(selectBridges, about.Session, bridgeNamespace, bridgeHealth, afterHealth, identity.System, maxBridges)
	defer rows.Close()
	for rows.Next() {
		var key, text string
		var since time.Time
		if err := rows.Scan(&key, &text, &since); err != nil {
			return nil, fmt.Errorf("explain bridges: %w", err)
		}
		var r bridgeReport
		if json.Unmarshal([]byte(text), &r) != nil {
			continue
		}
		found = append(found, r.findings(about, key, since)...)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("explain bridges: %w", err)
	}
	return found, nil
}

// findings returns what a report says about a question. since is when the report was written.
func (r *bridgeReport) findings(about finding.Question, key string, since time.Time) (found []finding.Finding) {
	forget := calls.Do(&pb.DeleteStateRequest{Namespace: bridgeNamespace, Key: key})
	for _, w := range r.Waits {
		if about.Kind == finding.Agent && w.Agent != about.Name {
			continue
		}
		f := finding.Finding{Severity: finding.Error, Subject: "bridge " + r.Folder, Since: w.Since,
			Summary: fmt.Sprintf("it cannot %s: %s", w.Action, w.Reason),
			Reasons: []string{"the bridge tries again until it succeeds",
				"if no bridge runs on the folder any more, delete the report: its key is " + key}}
		if w.Agent != "" {
			f.Summary = fmt.Sprintf("it cannot %s of %s: %s", w.Action, w.Agent, w.Reason)
			f.Calls = []calls.Call{calls.Do(&pb.GetAgentRequest{Name: w.Agent})}
		}
		f.Calls = append(f.Calls, forget)
		found = append(found, f)
	}
	if r.Rejected > 0 && about.Kind == finding.Everything {
		found = append(found, finding.Finding{Severity: finding.Warning, Subject: "bridge " + r.Folder, Since: since,
			Summary: finding.Count(r.Rejected, "rejected file") + ", the last one " + r.Reason,
			Reasons: []string{fmt.Sprintf("to send %s, correct it in %s/rejected/ and move it back; otherwise remove it and its .error file",
				r.Newest, r.Folder)},
			Calls: []calls.Call{calls.Do(&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"bridge.file_rejected"}}})}})
	}
	return found
}
