package handoffs

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Limits. Those of texts are in bytes.
const (
	maxFences   = 100
	maxTogether = 512 << 10 // bytes
	mostPending = 1000      // per session
)

const (
	pending   = pb.HandoffState_HANDOFF_STATE_PENDING
	accepted  = pb.HandoffState_HANDOFF_STATE_ACCEPTED
	rejected  = pb.HandoffState_HANDOFF_STATE_REJECTED
	cancelled = pb.HandoffState_HANDOFF_STATE_CANCELLED
)

// moves are the calls that a state permits.
var moves = work.Moves[pb.HandoffState]{
	pending:  {"accept", "reject", "cancel", "check"},
	accepted: {"check"},
}

// kind is what the table knows of handoffs.
var kind = work.Kind[*pb.Handoff]{
	Number:     work.Handoffs,
	Noun:       "handoff",
	Letter:     "h",
	Final:      []protoreflect.EnumNumber{accepted.Number(), rejected.Number(), cancelled.Number()},
	PartFields: []protoreflect.Name{"content", "checklist"},
	Split:      split,
	Join:       join,
	Title:      (*pb.Handoff).GetTitle,
	Columns: func(h *pb.Handoff) work.Columns {
		return work.Columns{
			State: h.State.Number(), Opener: h.From, Agent: h.ToAgent, Role: h.ToRole, Task: h.TaskId,
			Finished: work.Time(h.SettledAt),
		}
	},
	Check: check,
}

// split returns what the row has of a handoff: of the checklist, who has checked the items. The texts are a part.
func split(h *pb.Handoff) *pb.Handoff {
	row := work.Without(h, "content", "checklist")
	for _, i := range h.Checklist {
		marks := &pb.ChecklistItem{Checked: i.Checked, CheckedBy: i.CheckedBy, CheckedAt: i.CheckedAt}
		row.Checklist = append(row.Checklist, marks)
	}
	return row
}

// join makes one checklist of the items of the row and those of the part, which follow.
func join(h *pb.Handoff) {
	n := len(h.Checklist) / 2
	for i, text := range h.Checklist[n:] {
		h.Checklist[i].Number, h.Checklist[i].Text = text.Number, text.Text
	}
	h.Checklist = h.Checklist[:n]
}

// check returns what is wrong with a handoff, for CheckDatabase.
func check(h *pb.Handoff, _ []work.Part) (problems []string) {
	if (h.State == pending) != (h.SettledAt == nil) {
		problems = append(problems, "only a pending handoff is not settled")
	}
	checked := 0
	for _, item := range h.Checklist {
		if item.Checked {
			checked++
		}
	}
	if int(h.Items) != len(h.Checklist) || int(h.Checked) != checked {
		problems = append(problems, "its counts are not those of its checklist")
	}
	for _, g := range h.Grants {
		if (h.State == accepted) != (g.NewFence != 0 || g.Lost) {
			return append(problems, "a grant is transferred or lost, but the handoff is not accepted, or the reverse")
		}
	}
	return problems
}

// Checks returns the checks of the handoffs in a database; see work.Kind.
func Checks(most int) []func(q store.Querier) ([]string, error) { return kind.Checks(most) }

// Tasks moves claims of tasks.
type Tasks interface {
	// Fence returns the fence by which an agent holds a task; 0 if it does not hold it.
	Fence(q store.Querier, session int64, task, agent string) (int64, error)
	// Transfer moves the claim of a task to another agent, and returns the new fence.
	Transfer(tx *store.Tx, session int64, task, from, to string) (int64, error)
}

// Locks moves locks and tokens.
type Locks interface {
	// Find returns the name of the lock or token that an agent holds by a fence; found is false if it
	// does not.
	Find(q store.Querier, session int64, agent string, fence int64) (name string, token, found bool, err error)
	// Transfer moves a lock or token to another agent, and returns the new fence.
	Transfer(tx *store.Tx, session, fence int64, from string, to directory.Agent, why string) (int64, error)
}

// Artifacts knows the artifacts of sessions.
type Artifacts interface {
	// Find checks that a session has the artifact NAME or NAME@VERSION. Errors: fault.NotFound.
	Find(q store.Querier, session int64, reference string) error
}

// A Service keeps the handoffs of all sessions and serves the HandoffService of the API. Its methods may
// be called concurrently.
type Service struct {
	pb.UnimplementedHandoffServiceServer
	*work.Table[*pb.Handoff]
	tasks Tasks
	locks Locks
	files Artifacts
}

// New returns the handoffs of a store that was opened with Migrations. They do nothing by themselves
// before Start.
func New(d *work.Desk, tasks Tasks, locks Locks, files Artifacts) *Service {
	s := &Service{tasks: tasks, locks: locks, files: files}
	k := kind
	k.Chore = s.chore
	s.Table = work.NewTable(d, k)
	return s
}

// to returns the recipient as brokerctl spells it.
func to(h *pb.Handoff) string {
	if h.ToAgent == "" {
		return "role:" + h.ToRole
	}
	return h.ToAgent
}

// isFor reports whether an agent is the recipient, or one of them.
func isFor(h *pb.Handoff, a directory.Agent) bool {
	return a.Name != h.From && (h.ToAgent == a.Name || h.ToRole != "" && h.ToRole == a.Role)
}
