package tasks

import (
	"strings"

	"brokerd/internal/identity"
	"brokerd/internal/work"
)

// assignment is the type of the letter to the assignee of a READY task.
const assignment = "task_assignment"

// assign sends the assignee of a READY task its letter.
func (u *taskTx) assign(task *Task) error {
	if task.Assignee == "" || task.Assignee == task.Creator {
		return nil
	}
	if err := task.fill(u.Tx); err != nil {
		return err
	}
	details := map[string]any{"task_id": task.ID, "title": task.Title, "description": task.Description}
	if len(task.DependsOn) > 0 {
		details["depends_on"] = task.DependsOn
	}
	if task.ParentID != "" {
		details["parent"] = task.ParentID
	}
	payload, err := marshal(details)
	if err != nil {
		return err
	}
	// A creator that has deregistered cannot send.
	from, _, err := u.Directory.Find(u.Tx, u.Session.ID, task.Creator)
	if err != nil {
		return err
	}
	_, err = u.Post.Post(u.Tx.Tx, u.Session.ID, work.Letter{
		From: from, To: []string{task.Assignee}, Type: assignment, Subject: task.Title, Body: task.Description, Payload: payload,
		Task: task.ID, Priority: task.Priority, Artifacts: task.Artifacts, About: task.Created,
	})
	return err
}

// tell sends an agent a notice about a task, unless the agent itself has caused it.
func (u *taskTx) tell(task *Task, agent, kind, subject string, details map[string]any) error {
	if agent == "" || agent == identity.System || agent == u.Actor.Name {
		return nil
	}
	payload, err := marshal(details)
	if err != nil {
		return err
	}
	return u.Post.Notify(u.Tx.Tx, u.Session.ID, work.Notice{
		Agent: agent, Type: kind, Subject: subject, Payload: payload, Task: task.ID, About: task.Created,
	})
}

// shorten cuts a text to at most maxShown bytes.
func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown-len("…")], "") + "…"
}
