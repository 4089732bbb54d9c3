package agents

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// records returns the agents of a session after a name, those that have deregistered included, each as
// one line of JSON, and the name of the last one.
func records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	rows := q.Query(everyAgent, session, after, limit)
	defer rows.Close()
	for rows.Next() {
		var registered bool
		a, err := scan(rows, session, &registered)
		if err != nil {
			return nil, "", err
		}
		line, err := a.line(registered)
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, line), a.Name
	}
	return lines, last, rows.Err()
}

func (a *Agent) line(registered bool) ([]byte, error) {
	return json.Marshal(record{
		Name: a.Name, Role: a.Role, Incarnation: a.Incarnation, Registered: registered, Capabilities: a.Capabilities,
		Instance: a.Instance, Worktree: a.Worktree, Labels: a.Labels, Lease: a.Lease.Seconds(), Status: a.Status.String(),
		DisplayName: a.DisplayName, Description: a.Purpose, StatusReason: a.Reason, CompletedAt: a.CompletedAt, LastSeen: a.LastSeen,
		Sent: a.Sent, Received: a.Received, Processed: a.Processed,
		Activity: a.Activity, TaskID: a.TaskID, Progress: a.Progress,
		Turns: a.Turns, ModelTokens: a.ModelTokens, Files: a.Files, ToolCalls: a.ToolCalls, Errors: a.Errors,
		LastTool: a.LastTool, LastFile: a.LastFile, Attention: a.Attention.String(),
		FailedAt: a.FailedAt, StoppedAt: a.StoppedAt, RegisteredAt: a.RegisteredAt, ChangedAt: a.ChangedAt,
		Revision: a.Revision,
	})
}

// A record is an agent as an export has it.
type record struct {
	Name         string            `json:"name"`
	DisplayName  string            `json:"display_name"`
	Description  string            `json:"description"`
	Role         string            `json:"role"`
	Incarnation  int64             `json:"incarnation"`
	Registered   bool              `json:"registered"`
	Capabilities []string          `json:"capabilities"`
	Instance     string            `json:"instance"`
	Worktree     string            `json:"worktree"`
	Labels       map[string]string `json:"labels"`
	Lease        float64           `json:"lease_seconds"`
	Status       string            `json:"status"`
	StatusReason string            `json:"status_reason"`
	Activity     string            `json:"activity"`
	TaskID       string            `json:"task_id"`
	Progress     float64           `json:"progress"`
	Turns        int64             `json:"turns"`
	ModelTokens  int64             `json:"model_tokens"`
	Files        int64             `json:"files"`
	ToolCalls    int64             `json:"tool_calls"`
	Errors       int64             `json:"errors"`
	LastTool     string            `json:"last_tool"`
	LastFile     string            `json:"last_file"`
	Attention    string            `json:"attention"`
	RegisteredAt time.Time         `json:"registered_at"`
	FailedAt     time.Time         `json:"failed_at,omitzero"`
	StoppedAt    time.Time         `json:"stopped_at,omitzero"`
	CompletedAt  time.Time         `json:"completed_at,omitzero"`
	LastSeen     time.Time         `json:"last_seen"`
	Sent         int64             `json:"sent"`
	Received     int64             `json:"received"`
	Processed    int64             `json:"processed"`
	ChangedAt    time.Time         `json:"changed_at"`
	Revision     int64             `json:"revision"`
}

const (
	endedPage       = 50  // agents that one function removes
	checkpointsPage = 100 // checkpoints that it removes, each of up to 256 KiB, unless one agent has more
)

// deregistered returns agents that have deregistered at or before a time, the first to do so first: at most
// limit and endedPage, and fewer if they have many checkpoints.
func deregistered(q store.Querier, session int64, before time.Time, limit int) (found []work.Done, err error) {
	rows := q.Query(selectEnded, session, min(limit, endedPage))
	defer rows.Close()
	for all := 0; rows.Next(); {
		var registered bool
		var checkpoints int
		a, err := scan(rows, session, &registered, &checkpoints)
		if err != nil {
			return nil, err
		}
		if all += checkpoints; a.ChangedAt.After(before) || all > checkpointsPage && len(found) > 0 {
			break
		}
		line, err := a.line(registered)
		if err != nil {
			return nil, err
		}
		found = append(found, work.Done{Key: a.Revision, At: a.ChangedAt, Line: line})
	}
	return found, rows.Close()
}

// remove removes agents that deregistered has returned, with their checkpoints. If one of them registers
// again, its incarnation is higher than before all the same. Errors: fault.Conflict if one of them has
// registered since.
func remove(tx *store.Tx, session int64, done []work.Done) error {
	var highest int64
	for i := range done {
		var id, incarnation int64
		var name string
		err := tx.QueryRow(deleteEnded, session, done[i].Key).Scan(&id, &name, &incarnation)
		if errors.Is(err, store.ErrNoRows) {
			return fault.New(fault.Conflict, "CHANGED", "an agent that was to be removed has registered again")
		}
		if err != nil {
			return err
		}
		highest = max(highest, incarnation)
		tx.Exec(deleteCheckpoints, id)
		events.EndCursors(tx, session, name) // of an agent that deregistered before the broker did so
	}
	tx.Exec(raiseFloor, session, highest)
	return nil
}

// floor returns the highest incarnation of the agents of a session that were removed.
func floor(q store.Querier, session int64) (incarnation int64, err error) {
	err = q.QueryRow(selectFloor, session).Scan(&incarnation)
	if errors.Is(err, store.ErrNoRows) {
		err = nil
	}
	return incarnation, err
}

// erase removes up to limit agents of a session that is being deleted, with what belongs to them, after
// the cursors that the log keeps for them. It reports whether there may be more.
func (r *Registry) erase(tx *store.Tx, session int64, limit int) (more bool, err error) {
	if more, err := events.EraseCursors(tx, session, limit); more || err != nil {
		return more, err
	}
	agents, err := someAgents(tx, session, limit)
	if err != nil {
		return false, fmt.Errorf("remove agents: %w", err)
	}
	r.dir.AgentsChanged(tx)
	page := work.NewPage(tx)
	for _, id := range agents {
		if page.Full() {
			return true, nil
		}
		// An agent has at most 20 checkpoints, and up to 1,000 losses only if it has failed.
		for _, statement := range []string{deleteLosses, deleteCheckpoints, deleteAgent} {
			tx.Exec(statement, id)
		}
	}
	return len(agents) == limit, nil
}

func someAgents(q store.Querier, session int64, limit int) (found []int64, err error) {
	rows := q.Query(selectSome, session, limit)
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		found = append(found, id)
	}
	return found, rows.Err()
}

// forget removes the highest incarnation of a session without agents.
func forget(tx *store.Tx, session int64) {
	tx.Exec(deleteFloor, session)
}

// Data is what the keeper exports, archives and removes of a session: agents, then checkpoints.
func (r *Registry) Data() []work.Data {
	return []work.Data{{
		File: "agents.jsonl", Kind: "agents", Lines: records, Erase: r.erase, Forget: forget,
		Finished: deregistered, Remove: remove,
	}, {
		File: "checkpoints.jsonl", Lines: checkpointRecords,
	}}
}
