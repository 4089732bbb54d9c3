package admin

import (
	"fmt"
	"slices"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// mostFindings bounds an answer.
const mostFindings = 100

// An Explainer finds what is stuck in one feature, and why.
type Explainer interface {
	// Explain returns what the feature knows of the question; nothing if that is no matter of its
	// own, or if it knows nothing. It reads by index alone, and a bounded number of rows. Errors:
	// fault.NotFound for what does not exist, fault.Invalid for what cannot.
	Explain(q store.Querier, about finding.Question) ([]finding.Finding, error)
}

// Explain asks all features, and returns the worst findings first, then the oldest, at most
// mostFindings. Errors: fault.NotFound if no feature knows the subject.
func Explain(q store.Querier, all []Explainer, about finding.Question) ([]finding.Finding, error) {
	questions := []finding.Question{about}
	if about.Asker != "" && about.Kind == finding.Everything {
		questions = ownQuestions(about)
	}
	var found []finding.Finding
	for _, about := range questions {
		for _, e := range all {
			some, err := e.Explain(q, about)
			if err != nil {
				return nil, err
			}
			found = append(found, some...)
		}
	}
	if about.Asker != "" {
		for i := range found {
			found[i].Calls = slices.DeleteFunc(found[i].Calls, func(c calls.Call) bool { return !open(c, about.Asker) })
		}
		if about.Kind == finding.Everything {
			found = slices.DeleteFunc(found, func(f finding.Finding) bool { return f.Severity == finding.Info })
		}
	}
	if len(found) == 0 && about.Kind != finding.Everything {
		noun := about.Kind.String()
		return nil, fault.Missing(noun, about.Name, "there is no %s %q in this session", noun, about.Name)
	}
	finding.Sort(found)
	return found[:min(len(found), mostFindings)], nil
}

// ownQuestions are what an agent asks that names no subject: about itself and about its role.
func ownQuestions(about finding.Question) []finding.Question {
	about.Kind, about.Name = finding.Agent, about.Asker
	questions := []finding.Question{about}
	if about.AskerRole != "" {
		about.Kind, about.Name = finding.Role, about.AskerRole
		questions = append(questions, about)
	}
	return questions
}

// open reports whether an agent may make a call. It may not act in the name of another agent, nor as an operator, nor,
// since few roles may, direct others.
func open(c calls.Call, agent string) bool {
	switch c.Request.(type) {
	case *pb.MoveMessagesRequest, *pb.PurgeDeadLettersRequest, *pb.ForceReleaseLocksRequest, *pb.RevokeTokenRequest,
		*pb.ConfigureSessionRequest, *pb.SendMessagesRequest:
		return false
	}
	return c.Agent == "" || c.Agent == agent
}

const (
	slowCommit = 250 * time.Millisecond // from when on the time of a commit is a warning
	lately     = time.Minute            // since the last commit
)

// Commits explains that the commits of a database server take long, for which everything waits.
type Commits struct{ Store *store.Store }

// Explain implements Explainer.
func (c Commits) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	if about.Kind != finding.Everything || !c.Store.OnServer() {
		return nil, nil
	}
	stats := c.Store.Stats()
	if stats.RecentCommit < slowCommit || about.Now.Sub(stats.LastCommit) > lately {
		return nil, nil
	}
	reasons := []string{"the data is in " + c.Store.Name()}
	if snap, ok := q.(*store.Snapshot); ok {
		facts, err := c.Store.FactsIn(snap)
		if err != nil {
			return nil, err
		}
		reasons = append(reasons, "a confirmed change is "+facts.Confirmed)
	}
	return []finding.Finding{{Severity: finding.Warning, Subject: "database", Since: stats.LastCommit,
		Summary: fmt.Sprintf("the last commits took %v on average (a warning from %v on); each change waits for one",
			stats.RecentCommit.Round(time.Millisecond), slowCommit),
		Reasons: reasons,
		Calls:   []calls.Call{calls.Do(&pb.GetStatusRequest{})}}}, nil
}
