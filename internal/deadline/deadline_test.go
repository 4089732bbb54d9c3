package deadline_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"

	"brokerd/internal/deadline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A runner is a queue that runs, on a fake clock.
type runner struct {
	*deadline.Queue[string]
	t     *testing.T
	clock *clockwork.FakeClock
	due   chan []string
}

type construct func(clockwork.Clock, func([]string)) *deadline.Queue[string]

func run(t *testing.T, queue construct) *runner {
	t.Helper()
	r := &runner{t: t, clock: clockwork.NewFakeClock(), due: make(chan []string)}
	r.Queue = queue(r.clock, func(keys []string) { r.due <- slices.Clone(keys) })
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return r
}

func (r *runner) in(d time.Duration) time.Time { return r.clock.Now().Add(d) }

// asleep waits until the queue sleeps on its earliest deadline.
func (r *runner) asleep() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.clock.BlockUntilContext(ctx, 1); err != nil {
		r.t.Fatal("the queue does not sleep on a deadline")
	}
}

func (r *runner) advance(d time.Duration) {
	r.t.Helper()
	r.asleep()
	r.clock.Advance(d)
}

func (r *runner) want(keys ...string) {
	r.t.Helper()
	got := <-r.due
	slices.Sort(got)
	if diff := cmp.Diff(keys, got); diff != "" {
		r.t.Fatal(diff)
	}
}

// still checks that nobody was told although the clock has moved.
func (r *runner) still() {
	r.t.Helper()
	r.asleep()
	select {
	case keys := <-r.due:
		r.t.Fatalf("%v are due", keys)
	default:
	}
}

func TestQueue_TellsWhatIsDueInOrder(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.New[string])
	r.Set("c", r.in(3*time.Second))
	r.Set("a", r.in(time.Second))
	r.Set("b1", r.in(2*time.Second))
	r.Set("b2", r.in(2*time.Second))
	for _, want := range [][]string{{"a"}, {"b1", "b2"}, {"c"}} {
		r.advance(time.Second)
		r.want(want...)
	}
	if n := r.Len(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

func TestQueue_EarlierDeadlineWakesItSooner(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.New[string])
	r.Set("late", r.in(time.Hour))
	r.asleep()
	r.Set("soon", r.in(time.Second))
	woken(r)
	r.clock.Advance(time.Second)
	r.want("soon")
	if _, there := r.Deadline("late"); !there {
		t.Error("the later one has gone")
	}
}

// woken waits until the queue has planned anew: a past deadline makes the round.
func woken(r *runner) {
	r.Set("round", r.clock.Now())
	r.want("round")
	r.asleep()
}

func TestQueue_PastIsDueAtOnce(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.New[string])
	r.Set("past", r.in(-time.Hour))
	r.want("past")
}

func TestQueue_SetAgainMovesIt(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.New[string])
	r.Set("a", r.in(time.Second))
	r.Set("b", r.in(2*time.Second))
	want := r.in(3 * time.Second)
	r.Set("a", want)
	if at, there := r.Deadline("a"); !there || !at.Equal(want) {
		t.Errorf("a is due at %v (%v), want %v", at, there, want)
	}
	woken(r)
	r.advance(2 * time.Second)
	r.want("b")
	r.advance(time.Second)
	r.want("a")
	if _, there := r.Deadline("a"); there {
		t.Error("a key that was told is still in the queue")
	}
}

func TestQueue_RemovedIsNotTold(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.New[string])
	r.Set("a", r.in(time.Second))
	r.Set("b", r.in(2*time.Second))
	r.Remove("a")
	r.Remove("unknown")
	r.advance(time.Second)
	r.still()
	r.advance(time.Second)
	r.want("b")
}

func TestQueue_ResetReplacesEverything(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.New[string])
	r.Set("old", r.in(time.Second))
	r.asleep()
	r.Reset(map[string]time.Time{"a": r.in(2 * time.Second), "b": r.in(2 * time.Second)})
	if _, there := r.Deadline("old"); there || r.Len() != 2 {
		t.Errorf("%d keys, the old one among them: %v", r.Len(), there)
	}
	woken(r)
	r.advance(2 * time.Second)
	r.want("a", "b")
}

func TestQueue_ToldInPortions(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.New[string])
	all := map[string]time.Time{}
	for i := range 1200 {
		all[string(rune('a'+i%26))+time.Duration(i).String()] = r.in(time.Second)
	}
	r.Reset(all)
	woken(r)
	r.advance(time.Second)
	for _, want := range []int{500, 500, 200} {
		if got := len(<-r.due); got != want {
			t.Errorf("%d keys at a time, want %d", got, want)
		}
	}
}

func TestQueue_SuspendedProcessGivesTheTimeBack(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.New[string])
	r.Set("a", r.in(10*time.Second))
	r.Set("b", r.in(30*time.Second))
	r.advance(4 * time.Second)
	r.Remove("unknown") // the process is alive at 4 s
	r.clock.Advance(100 * time.Second)
	r.still() // and again at 104 s, where a has 6 s left and b 26 s
	for key, left := range map[string]time.Duration{"a": 6 * time.Second, "b": 26 * time.Second} {
		if at, _ := r.Deadline(key); !at.Equal(r.in(left)) {
			t.Errorf("%s has %v left, want %v", key, at.Sub(r.clock.Now()), left)
		}
	}
	r.Set("new", r.in(5*time.Second))
	woken(r)
	r.advance(5 * time.Second)
	r.want("new")
	r.advance(time.Second)
	r.want("a")
	r.advance(20 * time.Second)
	r.want("b")
}

func TestQueue_WhoComesFirstAfterASuspensionExpiresNobody(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	q := deadline.New(clock, func([]string) {})
	q.Set("a", clock.Now().Add(10*time.Second))
	clock.Advance(time.Minute) // nobody runs: as if a call were served before the runner wakes
	q.Set("b", clock.Now().Add(time.Second))
	if at, _ := q.Deadline("a"); !at.Equal(clock.Now().Add(10 * time.Second)) {
		t.Errorf("a has %v left, want 10s", at.Sub(clock.Now()))
	}
	if at, _ := q.Deadline("b"); !at.Equal(clock.Now().Add(time.Second)) {
		t.Errorf("b has %v left, want 1s", at.Sub(clock.Now()))
	}
}

func TestQueue_ASecondLateIsNotASuspension(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.New[string])
	r.Set("a", r.in(10*time.Second))
	r.advance(11 * time.Second)
	r.want("a")
}

func TestQueue_StalledOwnerGivesTheTimeBack(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	told, proceed := make(chan []string), make(chan struct{})
	q := deadline.New(clock, func(keys []string) { told <- slices.Clone(keys); <-proceed })
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { q.Run(ctx) })
	q.Set("a", clock.Now())
	<-told
	q.Set("b", clock.Now().Add(5*time.Second))
	clock.Advance(20 * time.Second) // while the owner of a waits for its disk
	proceed <- struct{}{}
	if err := clock.BlockUntilContext(ctx, 1); err != nil { // the runner sleeps: b is not due
		t.Fatal(err)
	}
	if at, _ := q.Deadline("b"); !at.Equal(clock.Now().Add(5 * time.Second)) {
		t.Errorf("b has %v left, want 5s", at.Sub(clock.Now()))
	}
	cancel()
	running.Wait()
}

func TestCalendar_GivesNothingBack(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.NewCalendar[string])
	at := r.in(10 * time.Second)
	r.Set("a", at)
	if got, _ := r.Deadline("a"); !got.Equal(at) {
		t.Errorf("due at %v, want %v", got, at)
	}
	r.advance(24 * time.Hour)
	r.want("a")
}

func TestCalendar_LooksAtTheWallClockEveryMinute(t *testing.T) {
	t.Parallel()
	r := run(t, deadline.NewCalendar[string])
	r.Set("tomorrow", r.in(24*time.Hour))
	r.advance(time.Minute)
	r.still()
	r.advance(23*time.Hour + 59*time.Minute) // the clock jumps: the timer of a minute is enough to notice
	r.want("tomorrow")
}

// TestQueue_AgreesWithAnOrderedList compares the heap with the obvious thing.
func TestQueue_AgreesWithAnOrderedList(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	due := make(chan int)
	q := deadline.New(clock, func(keys []int) {
		for _, k := range keys {
			due <- k
		}
	})
	random := rand.New(rand.NewPCG(1, 2))
	model := map[int]time.Time{}
	for range 20_000 {
		key := random.IntN(500)
		if random.IntN(3) == 0 {
			q.Remove(key)
			delete(model, key)
		} else {
			at := clock.Now().Add(time.Duration(random.IntN(1_000_000)) * time.Nanosecond)
			q.Set(key, at)
			model[key] = at
		}
	}
	clock.Advance(time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { q.Run(ctx) })
	var last time.Time
	for range len(model) {
		k := <-due
		at, there := model[k]
		if !there || at.Before(last) {
			t.Fatalf("%d is told out of order or twice", k)
		}
		last = at
		delete(model, k)
	}
	cancel()
	running.Wait()
	if q.Len() != 0 {
		t.Errorf("%d keys are left", q.Len())
	}
}

func BenchmarkSetRemove(b *testing.B) {
	clock := clockwork.NewRealClock()
	q := deadline.New(clock, func([]int) {})
	for i := range 100_000 {
		q.Set(-i-1, clock.Now().Add(time.Duration(i)*time.Millisecond+time.Hour))
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		q.Set(i, clock.Now().Add(30*time.Second))
		q.Remove(i - 1000)
	}
}
