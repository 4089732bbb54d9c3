package histories_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
)

const (
	clients  = 6
	calls    = 60 // of each client
	parallel = 8  // histories at a time on one daemon
	most     = 600
	maybes   = 2 // calls a history whose outcome may stay unknown
	patience = 10 * time.Minute
	decision = 2 * time.Minute // that porcupine has for one history
)

// A kind is what a history is about.
type kind struct {
	name    string
	model   model
	lenient model // tried if there is no order for the other
	// prepare returns what one client does in each of its calls.
	prepare func(c *client) func() error
	// finish records what the broker has done by itself, once all clients have made their calls; nil = nothing.
	finish func(ctx context.Context, h *history) error
}

func kinds() []kind {
	turns := func(name string, m *menu) kind {
		return kind{name, turnsModel(m, false), turnsModel(m, true),
			func(c *client) func() error { return newTurnsClient(c, m) },
			func(ctx context.Context, h *history) error { return recordEnds(ctx, h, m) }}
	}
	all := []kind{
		{"keys", keysModel(), keysModel(), newKeysClient, nil},
		turns("locks", locksOnly()),
		turns("token", oneToken()),
		turns("mixed", locksAndTokens()),
		{"tasks", tasksModel(), tasksModel(), newTasksClient, nil},
		{"votes", pollsModel(), pollsModel(), newPollsClient, nil},
		{"decisions", casesModel(), casesModel(), newCasesClient, nil},
	}
	if only := os.Getenv("HISTORY_KINDS"); only != "" {
		all = slices.DeleteFunc(all, func(k kind) bool { return !slices.Contains(strings.Split(only, ","), k.name) })
	}
	return all
}

// A trial is one run of the test.
type trial struct {
	*testing.T
	seed  int64
	kinds []kind
	statistics
}

func TestHistories_AreInOrder(t *testing.T) {
	t.Parallel()
	testHistories(t, 100, func(*daemon) {})
}

func TestHistories_AreInOrderOnPostgreSQL(t *testing.T) {
	t.Parallel()
	testHistories(t, 20, func(d *daemon) { d.Store = postgrestest.Own(t).URL("postgres") })
}

// testHistories runs a number of histories, unless HISTORIES has another one, on daemons that prepare has prepared.
func testHistories(t *testing.T, count int, prepare func(*daemon)) {
	count = int(fromEnvironment(t, "HISTORIES", int64(count)))
	seed := fromEnvironment(t, "HISTORY_SEED", rand.Int64N(1_000_000_000))
	t.Logf("HISTORY_SEED=%d repeats the choices", seed)
	program := processtest.Build(t)
	s := &trial{T: t, seed: seed, kinds: kinds()}
	for first := 0; first < count && !t.Failed(); first += most { // then new daemons, for what they hold grows
		last := min(first+most, count)
		lives, mortal := newDaemon(t, program), newDaemon(t, program)
		prepare(lives)
		prepare(mortal)
		var both sync.WaitGroup
		both.Go(func() { s.run(lives, first, last, false) })
		both.Go(func() { s.run(mortal, first, last, true) })
		both.Wait()
	}
	t.Logf("%d histories, %d calls, %d kills, %d calls cut off, %d of them unknown; %d took the lenient model; the longest decision took %v",
		s.histories.Load(), s.calls.Load(), s.kills.Load(), s.cut.Load(), s.unknown.Load(), s.lenient.Load(), time.Duration(s.longest.Load()).Round(time.Millisecond))
	t.Logf("%v", s.count)
	// How long a decision takes depends on the machine, and on how many calls a kill has left unknown.
	if n := s.undecided.Load(); n > int64(count)/10 {
		t.Errorf("%d of %d histories were not decided", n, count)
	}
	if count >= 100 && (s.cut.Load() == 0 || s.unknown.Load() == 0) {
		t.Error("no call was cut off by a kill, or none remained unknown: this test does not test what it should")
	}
}

// run makes the histories of a range that belong to a daemon that lives, or to one that is killed.
func (t *trial) run(d *daemon, first, last int, mortal bool) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := d.Start(ctx); err != nil {
		t.Error(err)
		return
	}
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		if mortal {
			d.liveAndDie(ctx, t, rand.New(rand.NewPCG(uint64(t.seed), uint64(first))))
		}
	}()
	numbers := make(chan int)
	var running sync.WaitGroup
	for range parallel {
		running.Go(func() {
			for n := range numbers {
				if !t.Failed() {
					t.judge(ctx, d, n, mortal)
				}
			}
		})
	}
	for n := first; n < last; n++ {
		if (n/len(t.kinds)%4 == 3) == mortal { // a quarter of each kind
			numbers <- n
		}
	}
	close(numbers)
	running.Wait()
	cancel()
	<-killed
	d.verify(t.T)
}

// judge makes one history and has it decided.
func (t *trial) judge(ctx context.Context, d *daemon, number int, mortal bool) {
	k := t.kinds[number%len(t.kinds)]
	h := newHistory(d, fmt.Sprintf("%s-%d", k.name, number), &t.statistics, mortal)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := h.make(ctx, k, t.seed+int64(number))
	t.add(k, h)
	if err == nil {
		err = h.decide(k)
	}
	if errors.Is(err, errUndecided) {
		t.undecided.Add(1)
		t.Logf("history %d (%s, HISTORY_SEED=%d): %v; %s", number, k.name, t.seed, err, h.write(k.model))
		return
	}
	if err != nil {
		t.Errorf("history %d (%s, HISTORY_SEED=%d): %v; %s", number, k.name, t.seed, err, h.write(k.model))
	}
}

// statistics are what the test tells of itself. All may be used concurrently.
type statistics struct {
	histories, calls, kills, cut, unknown, lenient atomic.Int64
	longest                                        atomic.Int64 // decision, in nanoseconds
	undecided                                      atomic.Int64

	mu    sync.Mutex // guards what follows
	count map[string]int
}

func (s *statistics) add(k kind, h *history) {
	s.histories.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == nil {
		s.count = map[string]int{}
	}
	for _, o := range h.operations {
		what := strings.Fields(k.model.DescribeOperation(o.Input, o.Output))
		s.count[k.name+" "+what[0]]++
	}
}

func (s *statistics) decided(took time.Duration) {
	for {
		before := s.longest.Load()
		if int64(took) <= before || s.longest.CompareAndSwap(before, int64(took)) {
			return
		}
	}
}

// fromEnvironment is a number that the environment may set.
func fromEnvironment(t *testing.T, name string, otherwise int64) int64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
