package decisions

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Items returns the unfinished decisions that concern an agent: those it owes, then those it opened,
// each with the oldest first.
func (s *Service) Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error) {
	in, err := s.Directory.ByID(q, session)
	if err != nil {
		return nil, err
	}
	list, err := s.concerning(q, session, a)
	if err != nil {
		return nil, err
	}
	var items []work.Item
	for _, d := range list {
		item := s.Item(d, 0)
		item.Due = work.Time(d.Deadline)
		switch {
		case mayDecide(d, a, in):
			item.Relation, item.Other, item.Calls = work.Owes, d.Opener, verdictCalls(d)
		case owedBy(d, a, in):
			item.Relation, item.Other, item.Due = work.Owes, addressee(d), time.Time{}
			item.Calls = []calls.Call{resubmitting(d), get(d), cancelling(d)}
		case d.Opener == a.Name:
			item.Relation, item.Other = work.Opened, decider(d)
			wait := calls.Do(&pb.GetDecisionRequest{Id: d.Id, Wait: finding.Patience()})
			item.Calls = []calls.Call{wait, cancelling(d)}
		default:
			continue
		}
		items = append(items, item)
	}
	slices.SortStableFunc(items, func(a, b work.Item) int { return cmp.Compare(a.Relation, b.Relation) })
	return items[:min(limit, len(items))], nil
}

// concerning returns the unfinished decisions that can concern an agent, the oldest first: those addressed to it
// or its role, those that it has opened, and those that have escalated.
func (s *Service) concerning(q store.Querier, session int64, a directory.Agent) ([]*pb.Decision, error) {
	list, err := s.Owed(q, session, a, mostUnfinished)
	for _, f := range []work.Filter[*pb.Decision]{
		{Opener: a.Name},
		{States: []protoreflect.EnumNumber{escalated.Number()}},
	} {
		if err != nil {
			return nil, err
		}
		var more []*pb.Decision
		more, err = s.Open(q, session, f, mostUnfinished)
		list = append(list, more...)
	}
	slices.SortFunc(list, func(a, b *pb.Decision) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(s.Key(a), s.Key(b)))
	})
	return slices.CompactFunc(list, func(a, b *pb.Decision) bool { return a.Id == b.Id }), err
}

// decider names the agent or role that owes the verdict.
func decider(d *pb.Decision) string {
	if d.State == escalated && d.EscalatedTo != "" {
		return "role:" + d.EscalatedTo
	}
	return addressee(d)
}

func get(d *pb.Decision) calls.Call { return calls.Do(&pb.GetDecisionRequest{Id: d.Id}) }

func cancelling(d *pb.Decision) calls.Call {
	return calls.Do(&pb.CancelDecisionRequest{Id: d.Id})
}

// resubmitting opens the next round. The opener adds the revised content.
func resubmitting(d *pb.Decision) calls.Call {
	return calls.Do(&pb.ResubmitDecisionRequest{Id: d.Id}, "content.body")
}

// verdictCalls returns the calls that answer the decision.
func verdictCalls(d *pb.Decision) (list []calls.Call) {
	for _, verdict := range d.Verdicts {
		call := calls.Do(&pb.DecideRequest{Id: d.Id, Verdict: verdict})
		if verdict == deferring {
			call.Missing = []string{"until"}
		}
		list = append(list, call)
	}
	return append(list, get(d))
}

// Explain says what one decision waits for. Without a subject, it finds decisions that an agent or an
// operator should act on: escalated ones, and those that an agent owes that cannot work.
func (s *Service) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	list := make([]*pb.Decision, 1)
	var err error
	switch about.Kind {
	case finding.Decision:
		if list[0], err = s.find(q, about.Session, about.Name); fault.KindOf(err) == fault.NotFound {
			return nil, nil // the caller says so
		}
	case finding.Everything:
		list, err = s.Open(q, about.Session, work.Filter[*pb.Decision]{}, mostUnfinished)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("explain decisions: %w", err)
	}
	slices.SortStableFunc(list, func(a, b *pb.Decision) int { return cmp.Compare(a.State, b.State) })
	return work.Findings(&about, list, mostUnfinished, func(*pb.Decision) bool { return true },
		explainer{s, q, &about}.finding)
}

// An explainer makes the findings of one answer.
type explainer struct {
	*Service
	q     store.Querier
	about *finding.Question
}

func (e explainer) finding(d *pb.Decision) (finding.Finding, error) {
	f := finding.Finding{Severity: finding.Info, Subject: "decision " + d.Id, Since: work.Time(d.ChangedAt)}
	what := fmt.Sprintf("%s by %s, round %d of %d", subject(d), d.Opener, d.Round, d.MaxRounds)
	if d.Round > 1 {
		what = fmt.Sprintf("%s by %s", subject(d), d.Opener)
	}
	session, err := e.Directory.ByID(e.q, e.about.Session)
	if err != nil {
		return f, err
	}
	f.Calls = explainCalls(d, e.about, session)
	switch d.State {
	case open:
		f.Summary = what + ", waits for the verdict of " + addressee(d)
		if d.Agent != "" {
			err = e.agent(&f, d.Agent)
		}
	case revising:
		f.Summary = what + ", waits until " + d.Opener + " resubmits it"
		err = e.agent(&f, d.Opener)
	case escalated:
		f.Severity, f.Summary = finding.Warning, what+", has escalated: "+d.Note
		f.Reasons = []string{"an agent of the role " + d.EscalatedTo + " decides, or an operator"}
		if d.EscalatedTo == "" {
			f.Severity = finding.Error
			f.Reasons = []string{"no agent has a role that the session escalates to (setting escalate-to); an operator decides"}
		}
	default:
		f.Summary = what + ", is " + work.Word(d.State)
		if d.Verdict != "" {
			f.Summary = what + ", has the verdict " + d.Verdict
		}
	}
	if d.State == open && d.Deadline != nil {
		f.Reasons = append(f.Reasons, "it escalates at "+e.about.When(d.Deadline.AsTime()))
	}
	return f, err
}

// explainCalls returns the calls that the caller may make: those that settle the decision first.
func explainCalls(d *pb.Decision, about *finding.Question, s directory.Session) (list []calls.Call) {
	asker := directory.Agent{Name: cmp.Or(about.Asker, work.Broker.Name), Role: about.AskerRole}
	switch {
	case mayDecide(d, asker, s):
		return verdictCalls(d)
	case d.State == revising && d.Opener == about.Asker:
		list = append(list, resubmitting(d))
	case d.State == revising:
		list = append(list, finding.Explain(finding.Agent, d.Opener))
	case d.State == open && d.Agent != "":
		list = append(list, finding.Explain(finding.Agent, d.Agent))
	}
	list = append(list, get(d))
	if (waits(d) || d.State == revising) && about.Mine(d.Opener) {
		list = append(list, cancelling(d))
	}
	return list
}

// agent adds the condition of an agent that something waits for.
func (e explainer) agent(f *finding.Finding, name string) error {
	says, well, err := e.crew.Condition(e.q, *e.about, name)
	if err != nil {
		return err
	}
	f.Reasons = append(f.Reasons, says)
	if !well {
		f.Severity = finding.Warning
	}
	return nil
}
