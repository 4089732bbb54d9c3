package tasks

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// noun is the name of the kind in items, counts, events and metrics.
const noun = "task"

const (
	waiting   = pb.TaskState_TASK_STATE_WAITING
	ready     = pb.TaskState_TASK_STATE_READY
	claimed   = pb.TaskState_TASK_STATE_CLAIMED
	blocked   = pb.TaskState_TASK_STATE_BLOCKED
	done      = pb.TaskState_TASK_STATE_DONE
	failed    = pb.TaskState_TASK_STATE_FAILED
	cancelled = pb.TaskState_TASK_STATE_CANCELLED
)

// moves are the calls that a state permits. A holder may claim its task again, which changes nothing; so does
// completing a task that is done, and cancelling one that was cancelled.
var moves = work.Moves[pb.TaskState]{
	waiting:   {"describe", "decline", "cancel"},
	ready:     {"claim", "describe", "decline", "cancel"},
	claimed:   {"claim", "report", "block", "complete", "fail", "release", "describe", "decline", "cancel"},
	blocked:   {"claim", "report", "block", "unblock", "complete", "fail", "release", "describe", "decline", "cancel"},
	done:      {"complete"},
	failed:    {"retry"},
	cancelled: {"cancel"},
}

// refusals are the reasons for which a state does not permit a call, and what the texts say besides the state. A
// refused claim has the texts of unavailable, and a refused call of the holder those of lost.
var refusals = map[string]struct{ reason, says string }{
	"describe": {"TASK_FINISHED", "; its description no longer changes"},
	"decline":  {"TASK_FINISHED", "; it can no longer be declined"},
	"cancel":   {"TASK_FINISHED", "; only an unfinished task can be cancelled"},
	"retry":    {"TASK_NOT_FAILED", "; only a failed task can be retried"},
	"unblock":  {"TASK_NOT_BLOCKED", ", not blocked"},
}

// allows refuses a call that the state of a task does not permit: fault.Precondition.
func allows(t *task, call string) error {
	if moves.Allows(t.State, call) {
		return nil
	}
	r := refusals[call]
	return fault.New(fault.Precondition, r.reason, "task %q is %s%s", t.Id, word(t.State), r.says)
}

// held reports whether a task in a state has a holder.
func held(s pb.TaskState) bool { return s == claimed || s == blocked }

// finished reports whether a task in a state has ended.
func finished(s pb.TaskState) bool { return s >= done }

// words are the names of the states as events and brokerctl spell them.
var words = func() (list [cancelled + 1]string) {
	for s := waiting; s <= cancelled; s++ {
		list[s] = work.Word(s)
	}
	return list
}()

func word(s pb.TaskState) string {
	if s < 0 || int(s) >= len(words) { // of a damaged row
		return work.Word(s)
	}
	return words[s]
}

// A task is a row of the table: the message of the API, and what the rules need besides. Its created_revision is
// its key. The message lacks what belongs to other rows (see fill), and the times, which answer adds.
type task struct {
	pb.Task

	createdAt, readyAt, claimedAt, updatedAt, blockedAt, finishedAt time.Time

	session    int64         // row id
	staleAfter time.Duration // 0 = never
	parent     int64         // key; 0 = none
	queue      int64         // row id
	entered    int64         // revision of its last change of state
	missing    int           // dependencies that are not DONE
	due        time.Time     // READY: no claim before; CLAIMED: when it becomes stale
	unblocked  bool          // the last change of state was from BLOCKED to CLAIMED
	texts      bool          // it has long texts
	needs      int           // dependencies
	indexed    bool          // its labels are in task_labels
}

// claimable reports whether an agent can claim the task now.
func (t *task) claimable() bool { return t.State == ready && t.due.IsZero() }

// answer returns the task as the API shows it.
func (t *task) answer() *pb.Task {
	t.CreatedAt, t.ReadyAt, t.ClaimedAt = work.Stamp(t.createdAt), work.Stamp(t.readyAt), work.Stamp(t.claimedAt)
	t.UpdatedAt, t.BlockedAt, t.FinishedAt = work.Stamp(t.updatedAt), work.Stamp(t.blockedAt), work.Stamp(t.finishedAt)
	if t.staleAfter > 0 {
		t.StaleAfter = durationpb.New(t.staleAfter)
	}
	switch t.State {
	case ready:
		t.DueAt = work.Stamp(t.due)
	case claimed:
		t.StaleAt = work.Stamp(t.due)
	case done:
		t.Fence = 0
	default:
	}
	return &t.Task
}

// brief returns the task in short.
func (t *task) brief() *pb.TaskBrief {
	b := &pb.TaskBrief{}
	t.toBrief(b)
	return b
}

func (t *task) toBrief(b *pb.TaskBrief) {
	b.Id, b.Title, b.State, b.Revision, b.Holder = t.Id, t.Title, t.State, t.Revision, ""
	if held(t.State) {
		b.Holder = t.Holder
	}
}

// Related finds objects of one kind that carry the id of a task: the newest, at most limit. Of an Item,
// it sets Kind, ID, Title and Revision.
type Related func(q store.Querier, session int64, task string, limit int) ([]work.Item, error)

// Gates knows which agents get no tasks.
type Gates interface {
	// Halted reports whether a halt is in force for an agent.
	Halted(tx *store.Tx, session int64, agent string) (bool, error)
	// Draining reports whether the broker delivers no new work to any agent.
	Draining(tx *store.Tx) (bool, error)
}

// Blockers knows the blockers that stop tasks.
type Blockers interface {
	// Stopping returns the ids of the unresolved blockers for which a task is BLOCKED, oldest first, at
	// most limit.
	Stopping(q store.Querier, session int64, task string, limit int) ([]string, error)
	// Freed records that a task is no longer BLOCKED for any blocker, because its claim has ended.
	Freed(tx *store.Tx, session int64, task string) error
}

// A Service keeps the tasks of all sessions and serves the TaskService of the API. Its methods may be called
// concurrently.
type Service struct {
	pb.UnimplementedTaskServiceServer
	*table
	related []Related
	gates   Gates    // nil = every agent gets tasks
	stops   Blockers // nil = there are no blockers
	done    []func(tx *store.Tx, session int64, task string) error

	draining sync.Once
	stopping chan struct{} // closed when waiting calls are to end

	// In the memory of the writer.
	queues  queues
	waiters waiters
}

// made is called with all that New returns. It is for tests of what the writer keeps in memory.
var made = func(*Service) {}

// A key is a task, or an agent, for whose change calls wait.
type key struct {
	session int64
	task    int64
	agent   string
}

// New returns the tasks of a store that was opened with Migrations. They do nothing by themselves before Start.
func New(d *work.Desk) *Service {
	own := *d
	own.Log = d.Log.Named("tasks")
	t := &table{Desk: &own, hub: work.NewHub[key](d.Clock), damaged: map[int64]bool{}}
	s := &Service{table: t, stopping: make(chan struct{}), queues: queues{table: t}}
	t.calendar = work.NewItemCalendar(d.Store, d.Clock, own.Log, entries, s.due)
	t.Backlog = work.NewBacklog(d.Store, "tasks", d.Clock, own.Log, s.chore)
	made(s)
	return s
}

// UseRelated adds sources of objects that carry the id of a task. Call it before Start.
func (s *Service) UseRelated(r ...Related) { s.related = append(s.related, r...) }

// EventsOf is the source of events.
func (s *Service) EventsOf(q store.Querier, session int64, task string, limit int) ([]work.Item, error) {
	found, err := s.Events.OfTask(q, session, task, limit)
	items := make([]work.Item, len(found))
	for i, e := range found {
		items[i] = work.Item{Kind: "event", ID: strconv.FormatInt(e.Revision, 10), Title: e.Type, Revision: e.Revision}
	}
	return items, err
}

// Data is what the keeper exports, archives and removes of a session.
func (s *Service) Data() work.Data {
	return work.Data{
		File: "tasks.jsonl", Kind: "tasks", Lines: s.Records, Erase: s.Erase, Forget: s.Forget,
		Finished: s.Finished, CountFinished: s.CountFinished, Remove: s.Remove,
	}
}

// UseGates sets the source of halts and drains. Call it before Start.
func (s *Service) UseGates(g Gates) { s.gates = g }

// UseBlockers sets the source of blockers. Call it before Start.
func (s *Service) UseBlockers(b Blockers) { s.stops = b }

// OnDone adds a function that runs in the transaction in which a task becomes DONE. Call it before
// Start.
func (s *Service) OnDone(hook func(tx *store.Tx, session int64, task string) error) {
	s.done = append(s.done, hook)
}

// Start makes the changes that became due while the broker was down, resumes its backlog, and waits
// for other changes. No client may create tasks before it has returned.
func (s *Service) Start(ctx context.Context) error {
	if err := s.Store.Drain(ctx, s.queues.start); err != nil {
		return fmt.Errorf("count unfinished tasks: %w", err)
	}
	s.calendar.Start()
	return s.Backlog.Start(ctx)
}

// Drain ends the waits: claims end as fault.Unavailable (SHUTTING_DOWN). It may be called more than
// once.
func (s *Service) Drain() {
	s.draining.Do(func() { close(s.stopping) })
	s.hub.Drain()
}

// Stop ends the calendar and the backlog. It may be called more than once.
func (s *Service) Stop() {
	s.calendar.Stop()
	s.Backlog.Stop()
}

// Forget drops what the writer keeps of a session without tasks and queues.
func (s *Service) Forget(tx *store.Tx, session int64) {
	s.queues.bySession.Delete(tx, session)
	s.queues.unfinished.Delete(tx, session)
}

// within returns the changes of a function of the writer.
func (s *Service) within(tx *work.Tx) *taskTx {
	return &taskTx{tx, s, map[string]pb.TaskEmptyReason{}}
}

// byBroker returns the changes that the broker itself makes in a session. closed sessions have none.
func (s *Service) byBroker(tx *store.Tx, session int64) (u *taskTx, closed bool, err error) {
	t, err := s.BeginBroker(tx, session)
	return s.within(t), t.Session.Closed(), err
}

func errStopping() error {
	e := fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker stops; call again in a moment")
	e.RetryAfter = time.Second
	return e
}
