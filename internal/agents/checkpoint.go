package agents

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

const checkpointsKept = 20 // of one agent

// A CheckpointKind says what a checkpoint is about. The numbers are those of the API and of the table.
type CheckpointKind int

// The kinds of checkpoints.
const (
	MessageProcessed CheckpointKind = 1 + iota
	StateCommitted
	TokenReleased
	Custom
)

// String returns the name of the kind as events spell it.
func (k CheckpointKind) String() string {
	names := [...]string{"unspecified", "message_processed", "state_committed", "token_released", "custom"}
	if k < 0 || int(k) >= len(names) {
		return names[0]
	}
	return names[k]
}

// A Checkpoint is a note of how far an agent has come. Deregistering does not remove it.
type Checkpoint struct {
	Kind      CheckpointKind
	Reference string
	Data      string // JSON, or empty
	SavedAt   time.Time
	Revision  int64
}

// SaveCheckpoint keeps a checkpoint of the calling agent beside its last 19, and returns its revision.
// Errors: fault.Precondition as from directory.Directory.Acting.
func (r *Registry) SaveCheckpoint(ctx context.Context, who identity.Caller, req idempotency.Request, c Checkpoint) (int64, error) {
	var revision int64
	err := r.store.Write(ctx, func(tx *store.Tx) error {
		_, err := req.Do(tx, &revision, func() (err error) {
			revision, err = r.saveCheckpoint(tx, who, c)
			return err
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("save checkpoint: %w", err)
	}
	return revision, nil
}

func (r *Registry) saveCheckpoint(tx *store.Tx, who identity.Caller, c Checkpoint) (int64, error) {
	a, err := r.calling(tx, who)
	if err != nil {
		return 0, err
	}
	summary := a.Name + " saved a checkpoint"
	if c.Reference != "" {
		summary += ": " + c.Reference
	}
	revision, err := r.append(tx, a, a.Name, events.Info, "agent.checkpoint", summary, map[string]any{
		"agent": a.Name, "kind": c.Kind.String(), "reference": c.Reference,
	})
	if err != nil {
		return 0, err
	}
	tx.Exec(insertCheckpoint, revision, a.ID, int64(c.Kind), c.Reference, c.Data, tx.Now())
	tx.Exec(deleteOldCheckpoints, a.ID, a.ID, checkpointsKept)
	return revision, nil
}

// checkpoints returns those of an agent, newest first, as many as fit in so many bytes.
func checkpoints(q store.Querier, agent int64, bytes int) ([]Checkpoint, error) {
	rows := q.Query(selectCheckpoints, agent)
	defer rows.Close()
	var found []Checkpoint
	for rows.Next() {
		c, err := scanCheckpoint(rows)
		if err != nil {
			return nil, err
		}
		if bytes -= len(c.Reference) + len(c.Data) + 64; bytes < 0 {
			return found, nil
		}
		found = append(found, c)
	}
	return found, rows.Err()
}

func scanCheckpoint(rows *store.Rows, more ...any) (Checkpoint, error) {
	var c Checkpoint
	var kind int
	err := rows.Scan(append([]any{&c.Revision, &kind, &c.Reference, &c.Data, &c.SavedAt}, more...)...)
	c.Kind = CheckpointKind(kind)
	return c, err
}

// checkpointRecords returns the checkpoints of a session after a revision, each as one line of JSON, and the revision
// of the last one.
func checkpointRecords(
	q store.Querier, session int64, after string, limit int,
) (lines [][]byte, last string, err error) {
	revision, _ := strconv.ParseInt(after, 10, 64) // empty at first
	rows := q.Query(everyCheckpoint, session, revision, limit)
	defer rows.Close()
	for rows.Next() {
		var agent string
		c, err := scanCheckpoint(rows, &agent)
		if err != nil {
			return nil, "", err
		}
		data := json.RawMessage(c.Data)
		if c.Data == "" {
			data = nil
		}
		line, err := json.Marshal(checkpointRecord{agent, c.Revision, c.Kind.String(), c.Reference, data, c.SavedAt})
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, line), strconv.FormatInt(c.Revision, 10)
	}
	return lines, last, rows.Err()
}

// A checkpointRecord is a checkpoint as an export has it.
type checkpointRecord struct {
	Agent     string          `json:"agent"`
	Revision  int64           `json:"revision"`
	Kind      string          `json:"kind"`
	Reference string          `json:"reference"`
	Data      json.RawMessage `json:"data"`
	SavedAt   time.Time       `json:"saved_at"`
}
