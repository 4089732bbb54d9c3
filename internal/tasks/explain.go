package tasks

import (
	"fmt"
	"time"

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

// Explain says why a task, an agent's tasks or the tasks of a session are stuck, and which command
// frees them. Errors: fault.NotFound for a task that does not exist.
func (t *Tasks) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	e := explainer{Tasks: t, q: q, about: about}
	var err error
	switch about.Kind {
	case finding.Task:
		var task *Task
		if task, err = find(q, about.Session, about.Name); err == nil {
			err = e.all([]*Task{task})
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
	*Tasks
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
	for _, state := range []State{Failed, Waiting, Ready, Claimed, Blocked} {
		some, err := scanAll(e.q.Query(selectStuck, e.about.Session, int64(state), mostScanned))
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
func (e *explainer) all(tasks []*Task) error {
	found, err := work.Findings(&e.about, tasks, mostExplained, func(*Task) bool { return true }, e.task)
	e.found = append(e.found, found...)
	return err
}

// task explains one task.
func (e *explainer) task(task *Task) (f finding.Finding, err error) {
	f = finding.Finding{Severity: finding.Info, Subject: "task " + task.ID, Since: task.CreatedAt}
	switch task.State {
	case Waiting:
		err = e.waiting(&f, task)
	case Ready:
		err = e.ready(&f, task)
	case Claimed, Blocked:
		err = e.held(&f, task)
	case Failed:
		f.Severity, f.Since = finding.Error, task.FinishedAt
		f.Summary = fmt.Sprintf("it failed after %s: %s", finding.Count(task.Attempts, "attempt"), finding.Clip(task.Error))
		f.Commands = []finding.Command{{"task", "retry", task.ID}, {"task", "get", task.ID}}
	case Cancelled:
		f.Since, f.Summary = task.FinishedAt, because("it was cancelled", task.Error)
	default:
		f.Since, f.Summary = task.FinishedAt, "it is done, completed by "+task.Holder
		f.Commands = []finding.Command{{"task", "get", task.ID}}
	}
	return f, err
}

// waiting explains a task with the dependency that stops it.
func (e *explainer) waiting(f *finding.Finding, task *Task) error {
	needs, err := task.relate(e.q)
	if err != nil {
		return err
	}
	f.Summary = fmt.Sprintf("it waits for %s", finding.Count(task.Missing, "task"))
	for _, n := range needs {
		if n.State != Done && len(f.Reasons) < mostExplained {
			says := fmt.Sprintf("it depends on %s, which is %s", n.ID, n.State)
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
	case o.State == Failed:
		f.Severity = finding.Error
		f.Summary = fmt.Sprintf("it never becomes ready unless task %s, which has failed, is done", o.ID)
		f.Commands = []finding.Command{{"task", "retry", o.ID}, {"task", "cancel", task.ID}}
	case o.State == Cancelled:
		f.Severity = finding.Error
		f.Summary = fmt.Sprintf("it never becomes ready, because task %s was cancelled", o.ID)
		f.Commands = []finding.Command{{"task", "cancel", task.ID}}
	default:
		f.Commands = []finding.Command{{"explain", "task", o.ID}}
	}
	return nil
}

// ready explains a task that no agent has claimed.
func (e *explainer) ready(f *finding.Finding, task *Task) error {
	f.Since = task.ReadyAt
	if task.DueAt.After(e.about.Now) {
		f.Summary = fmt.Sprintf("it is ready for attempt %d of %d at %s", task.Attempts+1, task.MaxAttempts, e.about.When(task.DueAt))
		f.Reasons = []string{"the attempt before failed: " + finding.Clip(task.Error)}
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
		if serves(task, a) {
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
		f.Reasons = append(f.Reasons, "it "+needed(task))
		f.Commands = []finding.Command{{"agent", "list"}, {"task", "cancel", task.ID}}
		return nil
	case len(able) == len(ended):
		f.Severity = finding.Error
		f.Summary = "it is ready, and every agent that could claim it has failed or stopped"
		f.Reasons = append(f.Reasons, "ended: "+finding.Names(ended))
	default:
		f.Reasons = append(f.Reasons, "these agents can claim it: "+finding.Names(able))
		if e.about.Now.Sub(task.ReadyAt) >= longReady {
			f.Severity = finding.Warning
		}
	}
	f.Commands = []finding.Command{{"explain", "agent", able[0]}}
	return nil
}

// needed says which agents may claim a task.
func needed(task *Task) string {
	says := "needs an agent"
	if task.Assignee != "" {
		says = "is assigned to " + task.Assignee
	}
	if task.Role != "" {
		says += " of the role " + task.Role
	}
	if len(task.Capabilities) > 0 {
		says += " with the capabilities " + finding.Names(task.Capabilities)
	}
	return says
}

// held explains a task that an agent holds.
func (e *explainer) held(f *finding.Finding, task *Task) error {
	holder, registered, err := e.Directory.Find(e.q, e.about.Session, task.Holder)
	if err != nil {
		return err
	}
	f.Since = task.ClaimedAt
	f.Summary = fmt.Sprintf("%s holds it since %s, attempt %d of %d, at %d %%", task.Holder, e.about.When(task.ClaimedAt),
		task.Attempts+1, task.MaxAttempts, int(task.Progress*100))
	if task.Note != "" {
		f.Reasons = append(f.Reasons, "its note: "+finding.Clip(task.Note))
	}
	if !registered || holder.Ended() {
		f.Severity = finding.Warning
		f.Reasons = append(f.Reasons, task.Holder+" is not alive")
	}
	release := finding.Command{"task", "release", task.ID}
	if !e.about.Mine(task.Holder) {
		release = finding.Command{"explain", "agent", task.Holder}
	}
	f.Commands = []finding.Command{{"task", "get", task.ID}, release}
	if task.State == Blocked {
		f.Since = task.BlockedAt
		f.Summary = fmt.Sprintf("%s is blocked since %s%s: %s", task.Holder, e.about.When(task.BlockedAt), finding.After(longBlocked),
			finding.Clip(task.Reason))
		if e.about.Now.Sub(task.BlockedAt) >= longBlocked {
			f.Severity = finding.Warning
		}
		return nil
	}
	if task.DueAt.IsZero() {
		return nil
	}
	f.Reasons = append(f.Reasons, "its last update was at "+e.about.When(task.UpdatedAt)+"; without another the broker releases it at "+e.about.When(task.DueAt))
	if left := task.DueAt.Sub(e.about.Now); left < task.StaleAfter/4 {
		f.Severity = finding.Warning
	}
	return nil
}
