package tasks_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/tasks"
)

// A witness is a clock that knows the tasks of its daemon.
type witness struct {
	watchedClock
	tasks *tasks.Service
}

// Made implements tasks.Witness.
func (w *witness) Made(t *tasks.Service) { w.tasks = t }

// A wait is a ClaimTask call that has begun to wait.
type wait struct {
	id        string // of the request
	end       context.CancelFunc
	ended     <-chan outcome[*pb.ClaimTaskResponse]
	cancelled bool // the broker may learn so later
}

// A dropping is a daemon of which every n-th function that changes something is dropped, while it is on.
type dropping struct {
	*daemon
	*rand.Rand
	witness *witness
	names   []string
	agents  map[string]*apptest.Actor
	on      atomic.Bool
	dropped atomic.Int64 // functions
	created int          // tasks
	waits   []*wait
	granted int // tasks, to calls that waited
	refused int // calls that waited and received nothing
}

// newDropping drops every n-th function, and makes the same choices for the same n.
func newDropping(t *testing.T, n int64) *dropping {
	t.Helper()
	clock := &witness{watchedClock: newClock()}
	d := &dropping{
		Rand:   rand.New(rand.NewPCG(uint64(n), 0)), //nolint:gosec // it must be the same again
		agents: map[string]*apptest.Actor{}, names: []string{"ann", "bob", "cleo"},
	}
	var changing atomic.Int64
	drop := func() error {
		if !d.on.Load() || changing.Add(1)%n != 0 {
			return nil
		}
		d.dropped.Add(1)
		return fault.New(fault.Unavailable, "DROPPED", "the test drops this function")
	}
	b := apptest.Start(t, apptest.With(func(c *app.Config) {
		c.Clock, c.StopTimeout = clock, apptest.Patience
		c.Options = func(o *store.Options) { o.Drop = drop }
	}))
	d.daemon, d.witness = &daemon{b, clock.watchedClock}, clock
	for _, name := range d.names {
		d.agents[name] = d.agent(name, "go")
	}
	return d
}

func (d *dropping) who() *apptest.Actor { return d.agents[pick(d, d.names)] }

// some returns the id of one of the newest tasks, if its function was not dropped.
func (d *dropping) some() string { return fmt.Sprintf("t%d", d.created-d.IntN(min(d.created, 20)+1)) }

func pick[V any](d *dropping, all []V) V { return all[d.IntN(len(all))] }

// labels returns labels, of which most are none.
func (d *dropping) labels() map[string]string {
	return pick(d, []map[string]string{nil, nil, nil, {"x": "1"}, {"x": "1", "y": "1"}})
}

// create creates up to three tasks.
func (d *dropping) create() error {
	var all []*pb.NewTask
	for range 1 + d.IntN(3) {
		task := &pb.NewTask{Title: "x", Priority: int32(4 + d.IntN(3)), Labels: d.labels()}
		for range d.IntN(3) {
			if need := d.some(); d.IntN(3) == 0 && d.created > 0 && !slices.Contains(task.DependsOn, need) {
				task.DependsOn = append(task.DependsOn, need)
			}
		}
		switch d.IntN(4) {
		case 0:
			task.Role = pick(d, []string{"builder", "tester"})
		case 1:
			task.Assignee = pick(d, d.names)
		case 2:
			task.Capabilities = []string{pick(d, []string{"go", "sql", "css"})}
		}
		d.created++
		task.Id = fmt.Sprintf("t%d", d.created)
		all = append(all, task)
	}
	a := d.who()
	return apptest.Err(a.CreateTasks(a.Ctx, &pb.CreateTasksRequest{Tasks: all}))
}

// wait begins a claim that waits if it gets no task at once.
func (d *dropping) wait(a *apptest.Actor, in *pb.ClaimTaskRequest) error {
	in.Wait, in.RequestId = durationpb.New(longWait), newID()
	ctx, cancel := context.WithTimeout(a.Ctx, patience)
	ended := make(chan outcome[*pb.ClaimTaskResponse], 1)
	go func() {
		answer, err := a.ClaimTask(ctx, in)
		ended <- outcome[*pb.ClaimTaskResponse]{answer, err}
	}()
	select {
	case <-d.daemon.Clock.waits:
		d.waits = append(d.waits, &wait{in.GetRequestId(), cancel, ended, false})
		return nil
	case o := <-ended:
		cancel()
		select { // it may have waited
		case <-d.daemon.Clock.waits:
		default:
		}
		return o.err
	}
}

// cancel cancels a call that waits.
func (d *dropping) cancel() {
	if len(d.waits) > 0 {
		w := pick(d, d.waits)
		w.end()
		w.cancelled = true
	}
}

func (d *dropping) register(a *apptest.Actor) error {
	return apptest.Err(a.RegisterAgent(a.Ctx, &pb.RegisterAgentRequest{
		Role: pick(d, []string{"builder", "tester"}), Lease: durationpb.New(apptest.LongLease),
		Capabilities: pick(d, [][]string{nil, {"go"}, {"sql"}, {"css", "go"}}),
	}))
}

// step makes one random call.
func (d *dropping) step() error {
	a, o, id := d.who(), d.Root(), d.some()
	switch d.IntN(22) {
	case 0, 1:
		return d.create()
	case 2, 3, 4, 5, 6:
		return d.wait(a, &pb.ClaimTaskRequest{Labels: d.labels()})
	case 7:
		return d.wait(a, &pb.ClaimTaskRequest{Id: id})
	case 8:
		return apptest.Err(a.ClaimTask(a.Ctx, &pb.ClaimTaskRequest{Id: id}))
	case 9, 10, 11:
		return apptest.Err(a.CompleteTask(a.Ctx, &pb.CompleteTaskRequest{Id: d.held(a, id)}))
	case 12:
		fatal := d.IntN(3) == 0
		return apptest.Err(a.FailTask(a.Ctx, &pb.FailTaskRequest{Id: d.held(a, id), Error: "it broke", Fatal: fatal}))
	case 13:
		decline := d.IntN(2) == 0
		return apptest.Err(a.ReleaseTask(a.Ctx, &pb.ReleaseTaskRequest{Id: d.held(a, id), Reason: "no", Decline: decline}))
	case 14:
		return apptest.Err(o.CancelTask(o.Ctx, &pb.CancelTaskRequest{Id: id, Cascade: d.IntN(2) == 0}))
	case 15:
		return apptest.Err(o.RetryTask(o.Ctx, &pb.RetryTaskRequest{Id: id}))
	case 16:
		return apptest.Err(o.UpdateTask(o.Ctx, &pb.UpdateTaskRequest{Id: id, SetLabels: map[string]string{"y": "1"}}))
	case 17:
		return d.register(a)
	case 18:
		err := apptest.Err(a.DeregisterAgent(a.Ctx, &pb.DeregisterAgentRequest{}))
		for try := 0; try < 3 && d.register(a) != nil; try++ {
		}
		return err
	case 19:
		kind := pick(d, []string{"halt", "resume", "resume", "resume"})
		return apptest.Err(o.SendMessages(o.Ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
			Target: &pb.Target{To: &pb.Target_Agent{Agent: a.Name}}, Type: kind}}}))
	case 20:
		return apptest.Err(o.Drain(o.Ctx, &pb.DrainRequest{Resume: d.IntN(6) > 0}))
	default:
		d.cancel()
		d.daemon.Clock.Advance(pick(d, []time.Duration{time.Second, time.Minute, time.Minute, longWait}))
		return nil
	}
}

// held returns the id of a task that an agent holds, or another one if it holds none.
func (d *dropping) held(a *apptest.Actor, other string) string {
	out, err := a.ListTasks(a.Ctx, &pb.ListTasksRequest{Holder: a.Name, PageSize: 1})
	if err != nil || len(out.GetTasks()) == 0 {
		return other
	}
	return out.GetTasks()[0].GetId()
}

// compare wants the memory of the writer to agree with the tables, and exactly those calls to wait that
// are on its lists. It returns how many are, and how many searches have not ended.
func (d *dropping) compare() (listed, searches int) {
	d.Helper()
	var over []string // calls that had ended before
	for _, w := range d.waits {
		if len(w.ended) > 0 && !w.cancelled {
			over = append(over, w.id)
		}
	}
	wrong, ids, searches, err := d.witness.tasks.Compare(context.Background())
	apptest.NoError(d, err)
	for _, w := range wrong {
		d.Errorf("after %d dropped functions: %s", d.dropped.Load(), w)
	}
	for _, id := range ids {
		if slices.Contains(over, id) || !slices.ContainsFunc(d.waits, func(w *wait) bool { return w.id == id }) {
			d.Errorf("the call %s is on the list and has ended", id)
		}
	}
	d.waits = slices.DeleteFunc(d.waits, func(w *wait) bool {
		if slices.Contains(ids, w.id) {
			return false
		}
		o := <-w.ended
		w.end()
		if status.Code(o.err) == codes.DeadlineExceeded {
			d.Errorf("the call %s was on no list and has not ended", w.id)
		}
		if o.answer.GetTask() != nil {
			d.granted++
		} else {
			d.refused++
		}
		d.sound(o.err)
		return true
	})
	return len(ids), searches
}

// sound wants an error, if any, to be one that a caller can cause or that the test has caused.
func (d *dropping) sound(err error) {
	d.Helper()
	switch status.Code(err) {
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.DeadlineExceeded:
		d.Error(err)
	default:
	}
}

// run makes random calls while functions are dropped, and compares after each.
func (d *dropping) run(steps int, step func() error) {
	d.Helper()
	for range steps {
		d.on.Store(true)
		err := step()
		d.on.Store(false)
		d.sound(err)
		if d.compare(); d.TB.(*testing.T).Failed() {
			d.Fatal("the memory of the writer is wrong")
		}
	}
	// All who still wait learn in the end that there is no task for them.
	apptest.Must(d, d.Root().Drain, &pb.DrainRequest{Resume: true})
	d.until(longWait, func() bool { listed, _ := d.compare(); return listed == 0 })
}

// until advances the clock until a condition holds.
func (d *dropping) until(pause time.Duration, holds func() bool) {
	d.Helper()
	for deadline := time.Now().Add(patience); !holds(); runtime.Gosched() {
		d.daemon.Clock.Advance(pause)
		if time.Now().After(deadline) {
			d.Fatal("what should happen in time does not happen")
		}
	}
}

// tried wants the calls to have met what the test is about.
func (d *dropping) tried() {
	d.Helper()
	if n := d.dropped.Load(); n < 20 || d.granted == 0 || d.refused == 0 {
		d.Errorf("only %d functions were dropped; of the calls that waited, %d got a task and %d did not", n, d.granted, d.refused)
	}
}

func TestTasks_MemoryAgreesWithTheTablesWhateverIsDropped(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{2, 3, 5, 7} {
		t.Run(fmt.Sprint("every ", n), func(t *testing.T) {
			t.Parallel()
			d := newDropping(t, n)
			d.run(500, d.step)
			d.Restart() // the writer reads its memory again
			d.run(500, d.step)
			d.tried()
		})
	}
}

// TestTasks_ALongSearchOfAWaitingClaimMissesNoTaskWhateverIsDropped has claims wait whose searches need several
// functions.
func TestTasks_ALongSearchOfAWaitingClaimMissesNoTaskWhateverIsDropped(t *testing.T) {
	t.Parallel()
	d := newDropping(t, 2)
	for _, label := range []string{"x", "y"} {
		for i := range 3 {
			createAll(d.Root(), many(fmt.Sprint(label, i), 1000, func(_ int, n *pb.NewTask) {
				n.Labels = map[string]string{label: "1"}
			})...)
		}
	}
	both := map[string]string{"x": "1", "y": "1"}
	d.run(100, func() error {
		if d.IntN(3) == 0 {
			d.on.Store(false)
			d.until(10*time.Millisecond, func() bool { _, searches := d.compare(); return searches == 0 })
			d.on.Store(true)
		}
		a := d.who()
		switch d.IntN(5) {
		case 0:
			d.created++
			return apptest.Err(a.CreateTasks(a.Ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{
				Id: fmt.Sprintf("t%d", d.created), Title: "x", Labels: both, Priority: 1,
				Capabilities: []string{pick(d, []string{"go", "sql"})},
			}}}))
		case 1:
			return d.wait(a, &pb.ClaimTaskRequest{Labels: both})
		case 2:
			d.cancel()
			return nil
		default:
			return d.register(a)
		}
	})
	d.tried()
}
