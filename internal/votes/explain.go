package votes

import (
	"fmt"

	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// mostExplained is how many open votes Explain reads for the session.
const mostExplained = 100

// Explain reports the state of a vote, the votes that wait for a given agent, and for the session the
// open votes that wait for agents that have failed.
func (v *Votes) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	switch about.Kind {
	case finding.Vote:
		vote, err := find(q, about.Session, about.Name)
		if err != nil {
			return nil, err
		}
		f, err := v.explain(q, &vote, &about)
		return []finding.Finding{f}, err
	case finding.Agent:
		owed, err := all(q, selectOwed, about.Name, about.Session, mostExplained)
		found := make([]finding.Finding, len(owed))
		for i := range owed {
			found[i] = finding.Finding{
				Severity: finding.Info, Subject: "vote " + owed[i].ID(), Since: owed[i].OpenedAt,
				Summary: fmt.Sprintf("%s has not voted in %q, which closes at %s", about.Name, owed[i].Title,
					about.When(owed[i].Deadline)),
				Commands: []finding.Command{{"vote", "get", owed[i].ID()}},
			}
		}
		return found, err
	case finding.Everything:
		return v.explainSession(q, &about)
	default:
		return nil, nil
	}
}

// explainSession returns the open votes that wait for agents that have failed.
func (v *Votes) explainSession(q store.Querier, about *finding.Question) ([]finding.Finding, error) {
	open, err := all(q, selectOldestOpen, about.Session, mostExplained)
	if err != nil {
		return nil, err
	}
	var found []finding.Finding
	for i := range open {
		f, err := v.explain(q, &open[i], about)
		if err != nil {
			return nil, err
		}
		if f.Severity > finding.Info {
			found = append(found, f)
		}
	}
	return found, nil
}

func (v *Votes) explain(q store.Querier, vote *Vote, about *finding.Question) (finding.Finding, error) {
	f := finding.Finding{
		Severity: finding.Info, Subject: "vote " + vote.ID(), Since: vote.OpenedAt,
		Commands: []finding.Command{{"vote", "get", vote.ID()}},
	}
	if !vote.Open() {
		f.Since = vote.ClosedAt
		f.Summary = fmt.Sprintf("%q closed at %s: %s", vote.Title, about.When(vote.ClosedAt), vote.result())
		return f, nil
	}
	f.Summary = fmt.Sprintf("%q is open until %s; %d of %d electors have voted", vote.Title,
		about.When(vote.Deadline), vote.Ballots, vote.Electors)
	if about.Mine(vote.Opener) {
		f.Commands = append(f.Commands, finding.Command{"vote", "close", vote.ID()})
	}
	cast, err := ballots(q, vote.Key)
	if err != nil {
		return f, err
	}
	var missing, ended []string
	for _, b := range cast {
		if b.Left || !b.CastAt.IsZero() {
			continue
		}
		missing = append(missing, b.Agent)
		a, known, err := v.dir.Find(q, about.Session, b.Agent)
		if err != nil {
			return f, err
		}
		if known && a.Ended() {
			ended = append(ended, b.Agent)
		}
	}
	f.Reasons = append(f.Reasons, "it waits for the ballots of "+finding.Names(missing))
	if len(ended) > 0 {
		f.Severity = finding.Warning
		f.Reasons = append(f.Reasons, "these electors have failed or stopped, so they cannot vote until they return: "+
			finding.Names(ended))
	}
	return f, nil
}
