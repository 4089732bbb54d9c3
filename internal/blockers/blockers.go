package blockers

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Limits.
const (
	maxRecipients    = 20
	mostUnresolved   = 1000 // per session
	mostAcknowledged = 50   // acknowledgements per blocker, those before it was reopened included
	mostEscalations  = 10   // per blocker
)

const (
	open         = pb.BlockerState_BLOCKER_STATE_OPEN
	acknowledged = pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED
	resolved     = pb.BlockerState_BLOCKER_STATE_RESOLVED
)

// rowReason is about how many bytes of the reason the row has. The whole reason of a longer one is a part.
const rowReason = 512

// kind is what the table knows of blockers. Each change adds its entries of the timeline as parts.
var kind = work.Kind[*pb.Blocker]{
	Number:     work.Blockers,
	Noun:       "blocker",
	Letter:     "b",
	Final:      []protoreflect.EnumNumber{resolved.Number()},
	PartFields: []protoreflect.Name{"reason", "timeline"},
	Title:      headline,
	Split: func(b *pb.Blocker) *pb.Blocker {
		row := work.Without(b, "reason", "timeline")
		row.Reason = work.Clip(b.Reason, rowReason)
		return row
	},
	Columns: func(b *pb.Blocker) work.Columns {
		c := work.Columns{
			State: b.State.Number(), Opener: b.Agent, Task: b.TaskId, Due: work.Time(b.EscalatesAt),
			Finished: work.Time(b.ResolvedAt),
		}
		if b.AutoResolve {
			c.Scope = awaitedScope(b.Awaited)
		}
		return c
	},
	Check: check,
}

// check returns what is wrong with a blocker, for CheckDatabase.
func check(b *pb.Blocker, _ []work.Part) (problems []string) {
	if (b.State == resolved) != (b.ResolvedAt != nil) {
		problems = append(problems, "only a resolved blocker has the time of a resolution")
	}
	if b.State != open && b.EscalatesAt != nil {
		problems = append(problems, "only an open blocker escalates")
	}
	if (b.State == acknowledged) != (len(b.AcknowledgedBy) > 0) && b.State != resolved {
		problems = append(problems, "it is acknowledged by no agent, or open and acknowledged")
	}
	if n := len(b.Timeline); n == 0 || !soundTimeline(b, b.Timeline[0], b.Timeline[n-1]) {
		problems = append(problems, "its timeline does not begin with its raising, or does not end with its last change")
	}
	return problems
}

// soundTimeline reports whether the first and the last entry of a timeline are those of the blocker.
func soundTimeline(b *pb.Blocker, first, last *pb.BlockerTimelineEntry) bool {
	return first.Step == pb.BlockerStep_BLOCKER_STEP_RAISED && work.ID("b", first.Revision) == b.Id &&
		last.Revision == b.Revision && (b.State == resolved) == (last.Step == pb.BlockerStep_BLOCKER_STEP_RESOLVED)
}

// Checks returns the checks of the blockers in a database; see work.Kind.
func Checks(most int) []func(q store.Querier) ([]string, error) { return kind.Checks(most) }

// Tasks blocks and unblocks tasks. Its methods run in the transaction of the blocker's change.
type Tasks interface {
	// Block makes a task BLOCKED if the agent holds it, or if it is claimed and an operator calls. It
	// reports whether the task is BLOCKED now; a task that it does not block, or that does not exist,
	// is no error.
	Block(tx *store.Tx, session int64, task string, by directory.Agent, reason string) (bool, error)
	// Unblock returns a task to its holder if it is still BLOCKED.
	Unblock(tx *store.Tx, session int64, task string, by directory.Agent, reason string) error
	// Done reports whether a task is DONE.
	Done(q store.Querier, session int64, task string) (bool, error)
}

// A Service keeps the blockers of all sessions and serves the BlockerService of the API. Its methods may
// be called concurrently.
type Service struct {
	pb.UnimplementedBlockerServiceServer
	*work.Table[*pb.Blocker]
	tasks Tasks // nil = there are no tasks
}

// New returns the blockers of a store that was opened with Migrations. They do nothing by themselves
// before Start.
func New(d *work.Desk) *Service {
	s := &Service{}
	k := kind
	k.Due, k.Chore = s.escalate, s.chore
	s.Table = work.NewTable(d, k)
	return s
}

// UseTasks plugs in the tasks. It is called before Start.
func (s *Service) UseTasks(t Tasks) { s.tasks = t }

// timeBlocked returns the time from the raising until the resolution, or until now.
func timeBlocked(b *pb.Blocker, now time.Time) time.Duration {
	if b.State == resolved {
		now = b.ResolvedAt.AsTime()
	}
	return max(now.Sub(b.RaisedAt.AsTime()), 0)
}

// asks reports whether a notification of the blocker went to an agent or its role.
func asks(b *pb.Blocker, a directory.Agent) bool {
	return slices.ContainsFunc(b.Timeline, func(e *pb.BlockerTimelineEntry) bool {
		r := e.Recipient
		return e.Message != 0 && (r.GetAgent() == a.Name || a.Role != "" && r.GetRole() == a.Role)
	})
}

// awaitedOf returns the kind and the name of the object that an agent waits for; empty for none.
func awaitedOf(o *pb.AwaitedObject) (kind, name string) {
	switch o := o.GetObject().(type) {
	case *pb.AwaitedObject_Agent:
		return "agent", o.Agent
	case *pb.AwaitedObject_Role:
		return "role", o.Role
	case *pb.AwaitedObject_TaskId:
		return "task", o.TaskId
	case *pb.AwaitedObject_Lock:
		return "lock", o.Lock
	case *pb.AwaitedObject_Text:
		return "text", o.Text
	}
	return "", ""
}

// awaitedScope is the column by which the end of an awaited object finds the blockers that resolve themselves.
func awaitedScope(o *pb.AwaitedObject) string {
	kind, name := awaitedOf(o)
	return kind + ":" + name
}

// recipientName returns a recipient as brokerctl spells it.
func recipientName(r *pb.BlockerRecipient) string {
	if r.GetAgent() == "" {
		return "role:" + r.GetRole()
	}
	return r.GetAgent()
}

func toRole(role string) *pb.BlockerRecipient {
	return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Role{Role: role}}
}

func toAgent(name string) *pb.BlockerRecipient {
	return &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: name}}
}

// headline is the first line of the reason, clipped.
func headline(b *pb.Blocker) string { return work.Headline(b.Reason, 200) }

// ofWhom names the blocker in a sentence about an agent.
func ofWhom(b *pb.Blocker, agent string) string {
	if agent == b.Agent {
		return "its own blocker"
	}
	return "the blocker of " + b.Agent
}

// addEntries adds entries to the timeline, with the revision of the blocker and the time of the change.
func (s *Service) addEntries(t *work.Tx, b *pb.Blocker, entries ...*pb.BlockerTimelineEntry) error {
	for i, e := range entries {
		e.Revision, e.At = b.Revision, work.Stamp(t.Now())
		b.Timeline = append(b.Timeline, e)
		if err := s.PutPart(t, b, entryPart(e, i), &pb.Blocker{Timeline: []*pb.BlockerTimelineEntry{e}}); err != nil {
			return err
		}
	}
	return nil
}

// entryPart is the name of the part that has an entry: number i of those of its change.
func entryPart(e *pb.BlockerTimelineEntry, i int) string {
	return fmt.Sprintf("timeline-%019d-%03d", e.Revision, i)
}
