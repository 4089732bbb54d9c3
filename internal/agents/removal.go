package agents

import (
	"encoding/json"
	"fmt"
	"time"

	"brokerd/internal/store"
)

// Records returns the agents of a session after a name, those that have deregistered included, each as one line of JSON, and
// the name of the last one.
func (r *Registry) Records(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	rows := q.Query(everyAgent, session, after, limit)
	defer rows.Close()
	for rows.Next() {
		var registered bool
		a, err := scan(rows, session, &registered)
		if err != nil {
			return nil, "", err
		}
		line, err := json.Marshal(record{
			Name: a.Name, Role: a.Role, Incarnation: a.Incarnation, Registered: registered, Capabilities: a.Capabilities,
			Instance: a.Instance, Worktree: a.Worktree, Labels: a.Labels, Lease: a.Lease.Seconds(), Status: a.Status.String(),
			DisplayName: a.DisplayName, Description: a.Purpose, StatusReason: a.Reason, CompletedAt: a.CompletedAt, LastSeen: a.LastSeen,
			Sent: a.Sent, Received: a.Received, Processed: a.Processed,
			Activity: a.Activity, TaskID: a.TaskID, Progress: a.Progress,
			Turns: a.Turns, ModelTokens: a.ModelTokens, Files: a.Files, ToolCalls: a.ToolCalls, Errors: a.Errors,
			LastTool: a.LastTool, LastFile: a.LastFile, FailedAt: a.FailedAt, RegisteredAt: a.RegisteredAt, ChangedAt: a.ChangedAt,
			Revision: a.Revision,
		})
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, line), a.Name
	}
	return lines, last, rows.Err()
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
	RegisteredAt time.Time         `json:"registered_at"`
	FailedAt     time.Time         `json:"failed_at,omitzero"`
	CompletedAt  time.Time         `json:"completed_at,omitzero"`
	LastSeen     time.Time         `json:"last_seen"`
	Sent         int64             `json:"sent"`
	Received     int64             `json:"received"`
	Processed    int64             `json:"processed"`
	ChangedAt    time.Time         `json:"changed_at"`
	Revision     int64             `json:"revision"`
}

// Forget removes all agents of a session.
func (r *Registry) Forget(tx *store.Tx, session int64) error {
	for _, statement := range []string{deleteAllLosses, deleteAllCheckpoints, deleteAgents} {
		if _, err := tx.Exec(statement, session); err != nil {
			return fmt.Errorf("remove agents: %w", err)
		}
	}
	r.known.Clear(tx)
	return nil
}
