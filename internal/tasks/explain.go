package tasks

import (
	"fmt"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const (
	longBlocked   = 15 * time.Minute // a warning after this time
	longReady     = 15 * time.Minute // likewise, although an agent could claim the task
	mostExplained = 20               // findings of one kind
	mostScanned   = 200              // tasks of one state that one answer reads
)

// Items returns the unfinished tasks that an agent holds or that are assigned to it, oldest first.
func (*table) Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error) {
	mine, err := scanAll(q.Query(selectHeld, session, a.Name, limit))
	if err != nil {
		return nil, err
	}
	assigned, err := scanAll(q.Query(selectAssigned, session, a.Name, limit))
	if err != nil {
		return nil, err
	}
	var items []work.Item
	for _, t := range mine {
		settle := calls.Do(&pb.CompleteTaskRequest{Id: t.Id})
		if t.State == blocked {
			settle = calls.Do(&pb.UpdateTaskRequest{Id: t.Id, BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}})
		}
		items = append(items, t.item(work.Holds, settle, calls.Do(&pb.ReleaseTaskRequest{Id: t.Id})))
	}
	for _, t := range assigned {
		if t.State == ready && len(items) < limit {
			items = append(items, t.item(work.Owes, calls.Do(&pb.ClaimTaskRequest{Id: t.Id}),
				calls.Do(&pb.ReleaseTaskRequest{Id: t.Id, Decline: true}, "reason")))
		}
	}
	return items, nil
}

func (t *task) item(r work.Relation, proposed ...calls.Call) work.Item {
	return work.Item{
		Kind: noun, ID: t.Id, Revision: t.Revision, Title: t.Title, State: word(t.State), Relation: r, Other: t.Creator,
		Due: t.due, Calls: proposed,
	}
}

// Explain says why a task, an agent's tasks or the tasks of a session are stuck, and which call
// frees them. Errors: fault.NotFound for a task that does not exist.
func (s *Service) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	e := explainer{Service: s, q: q, about: about}
	var err error
	switch about.Kind {
	case finding.Task:
		var t *task
		if t, err = find(q, about.Session, about.Name); err == nil {
			err = e.all([]*task{t})
		}
	case finding.Agent:
		err = e.agent()
	case finding.Everything:
		err = e.everything()
	default:
	}
	if err != nil {
		return nil, fmt.Errorf("explain tasks: %w", err)
	}
	return e.found, nil
}

// An explainer collects the findings of one answer.
type explainer struct {
	*Service
	q     store.Querier
	about finding.Question
	found []finding.Finding
	crew  []directory.Agent // of the session, once read
}

// agent explains the tasks that an agent holds.
func (e *explainer) agent() error {
	held, err := scanAll(e.q.Query(selectHeld, e.about.Session, e.about.Name, mostExplained))
	if err != nil {
		return err
	}
	return e.all(held)
}

// everything explains the tasks that do not proceed by themselves.
func (e *explainer) everything() error {
	for _, state := range []pb.TaskState{failed, waiting, ready, claimed, blocked} {
		some, err := scanAll(e.q.Query(selectStuck, e.about.Session, int32(state), mostScanned))
		if err == nil {
			err = e.all(some)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// all explains tasks, of which it adds mostExplained findings.
func (e *explainer) all(list []*task) error {
	found, err := work.Findings(&e.about, list, mostExplained, func(*task) bool { return true }, e.task)
	e.found = append(e.found, found...)
	return err
}

// task explains one task.
func (e *explainer) task(t *task) (f finding.Finding, err error) {
	f = finding.Finding{Severity: finding.Info, Subject: "task " + t.Id, Since: t.createdAt}
	switch t.State {
	case waiting:
		err = e.waiting(&f, t)
	case ready:
		err = e.ready(&f, t)
	case claimed, blocked:
		err = e.held(&f, t)
	case failed:
		f.Severity, f.Since = finding.Error, t.finishedAt
		f.Summary = fmt.Sprintf("it failed after %s: %s", finding.Count(int(t.Attempts), "attempt"), finding.Clip(t.Error))
		f.Calls = []calls.Call{calls.Do(&pb.RetryTaskRequest{Id: t.Id}), calls.Do(&pb.GetTaskRequest{Id: t.Id})}
	case cancelled:
		f.Since, f.Summary = t.finishedAt, because("it was cancelled", t.Error)
	default:
		f.Since, f.Summary = t.finishedAt, "it is done, completed by "+t.Holder
		f.Calls = []calls.Call{calls.Do(&pb.GetTaskRequest{Id: t.Id})}
	}
	return f, err
}

// waiting explains a task with the dependency that stops it.
func (e *explainer) waiting(f *finding.Finding, t *task) error {
	needs, err := t.relate(e.q)
	if err != nil {
		return err
	}
	f.Summary = fmt.Sprintf("it waits for %s", finding.Count(t.missing, "task"))
	for _, n := range needs {
		if n.State != done && len(f.Reasons) < mostExplained {
			says := fmt.Sprintf("it depends on %s, which is %s", n.Id, word(n.State))
			if n.Holder != "" {
				says += " by " + n.Holder
			}
			f.Reasons = append(f.Reasons, says)
		}
	}
	o := obstacle(needs)
	switch {
	case o == nil:
		f.Summary = "its dependencies are done, and the broker makes it ready in a moment"
	case o.State == failed:
		f.Severity = finding.Error
		f.Summary = fmt.Sprintf("it never becomes ready unless task %s, which has failed, is done", o.Id)
		f.Calls = []calls.Call{calls.Do(&pb.RetryTaskRequest{Id: o.Id}), calls.Do(&pb.CancelTaskRequest{Id: t.Id})}
	case o.State == cancelled:
		f.Severity = finding.Error
		f.Summary = fmt.Sprintf("it never becomes ready, because task %s was cancelled", o.Id)
		f.Calls = []calls.Call{calls.Do(&pb.CancelTaskRequest{Id: t.Id})}
	default:
		f.Calls = []calls.Call{finding.Explain(finding.Task, o.Id)}
	}
	return nil
}

// ready explains a task that no agent has claimed.
func (e *explainer) ready(f *finding.Finding, t *task) error {
	f.Since = t.readyAt
	if t.due.After(e.about.Now) {
		f.Summary = fmt.Sprintf("it is ready for attempt %d of %d at %s", t.Attempts+1, t.MaxAttempts, e.about.When(t.due))
		f.Reasons = []string{"the attempt before failed: " + finding.Clip(t.Error)}
		return nil
	}
	if e.crew == nil {
		var err error
		if e.crew, err = e.Directory.Matching(e.q, e.about.Session, directory.Selection{}); err != nil {
			return err
		}
	}
	var able, ended []string
	for _, a := range e.crew {
		if serves(t, a) {
			able = append(able, a.Name)
			if a.Ended() {
				ended = append(ended, a.Name)
			}
		}
	}
	f.Summary = "it is ready, and no agent has claimed it" + finding.After(longReady)
	switch {
	case len(able) == 0:
		f.Severity = finding.Error
		f.Summary = "it is ready, and no registered agent can claim it"
		f.Reasons = append(f.Reasons, "it "+needed(t))
		f.Calls = []calls.Call{calls.Do(&pb.ListAgentsRequest{}), calls.Do(&pb.CancelTaskRequest{Id: t.Id})}
		return nil
	case len(able) == len(ended):
		f.Severity = finding.Error
		f.Summary = "it is ready, and every agent that could claim it has failed or stopped"
		f.Reasons = append(f.Reasons, "ended: "+finding.Names(ended))
	default:
		f.Reasons = append(f.Reasons, "these agents can claim it: "+finding.Names(able))
		if e.about.Now.Sub(t.readyAt) >= longReady {
			f.Severity = finding.Warning
		}
	}
	f.Calls = []calls.Call{finding.Explain(finding.Agent, able[0])}
	return nil
}

// needed says which agents may claim a task.
func needed(t *task) string {
	says := "needs an agent"
	if t.Assignee != "" {
		says = "is assigned to " + t.Assignee
	}
	if t.Role != "" {
		says += " of the role " + t.Role
	}
	if len(t.Capabilities) > 0 {
		says += " with the capabilities " + finding.Names(t.Capabilities)
	}
	return says
}

// held explains a task that an agent holds.
func (e *explainer) held(f *finding.Finding, t *task) error {
	holder, registered, err := e.Directory.Find(e.q, e.about.Session, t.Holder)
	if err != nil {
		return err
	}
	f.Since = t.claimedAt
	f.Summary = fmt.Sprintf("%s holds it since %s, attempt %d of %d, at %d %%", t.Holder, e.about.When(t.claimedAt),
		t.Attempts+1, t.MaxAttempts, int(t.Progress*100))
	if t.Note != "" {
		f.Reasons = append(f.Reasons, "its note: "+finding.Clip(t.Note))
	}
	if !registered || holder.Ended() {
		f.Severity = finding.Warning
		f.Reasons = append(f.Reasons, t.Holder+" is not alive")
	}
	release := calls.Do(&pb.ReleaseTaskRequest{Id: t.Id})
	if !e.about.Mine(t.Holder) {
		release = finding.Explain(finding.Agent, t.Holder)
	}
	f.Calls = []calls.Call{calls.Do(&pb.GetTaskRequest{Id: t.Id}), release}
	if t.State == blocked {
		f.Since = t.blockedAt
		f.Summary = fmt.Sprintf("%s is blocked since %s%s: %s", t.Holder, e.about.When(t.blockedAt),
			finding.After(longBlocked), finding.Clip(t.BlockReason))
		if e.about.Now.Sub(t.blockedAt) >= longBlocked {
			f.Severity = finding.Warning
		}
		return nil
	}
	if t.due.IsZero() {
		return nil
	}
	f.Reasons = append(f.Reasons, "its last update was at "+e.about.When(t.updatedAt)+
		"; without another the broker releases it at "+e.about.When(t.due))
	if left := t.due.Sub(e.about.Now); left < t.staleAfter/4 {
		f.Severity = finding.Warning
	}
	return nil
}
