package crashtest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// Locks, tokens and keys are used in a session of their own, so that nobody there gets the mail of the cast.
const (
	turnSession = "turns"
	turnTakers  = 5
)

// A wish is what turn takers ask for: a path, exclusively or shared, or a token. What one of them counts in the key of a wish
// that is exclusive is safe from the others.
type wish struct {
	path   string
	shared bool
	token  string
}

func wishes() []wish {
	return []wish{{path: "src/"}, {path: "src/a.go"}, {path: "src/a.go", shared: true}, {path: "src/*.go", shared: true}, {path: "doc/x"}, {token: "t1"}, {token: "t2"}}
}

// conflicts reports whether two of the wishes cannot be held together.
func (w wish) conflicts(o wish) bool {
	if w.token != "" || o.token != "" {
		return w.token == o.token
	}
	return (w.path == "doc/x") == (o.path == "doc/x") && !(w.shared && o.shared)
}

// A turn is what somebody has held, as far as he knows.
type turn struct {
	wish     wish
	who      string
	fence    int64
	from, to time.Time // he knew that he had it, and had not begun to let it go; to is zero while he has it
}

// A turnRecord is what the turn takers know together.
type turnRecord struct {
	*record
	mu     sync.Mutex // guards what follows
	turns  []*turn
	passed map[int64]string // tokens, by the new fence: to whom
	counts map[string]int64 // confirmed, by key
}

// A turnTaker takes locks and tokens, counts under them, and lets them go or passes them on.
type turnTaker struct {
	record *turnRecord
	name   string
	random *rand.Rand
	has    *turn
	open   func(ctx context.Context, d *daemon) error // what came of it is unknown; nil = nothing is
	waits  *wish                                      // it has a ticket for this
}

func turnTakerName(i int) string { return fmt.Sprintf("taker-%d", i) }

// registerTurns makes the session and its agents.
func registerTurns(ctx context.Context, d *daemon) error {
	_, err := d.sessions.CreateSession(ctx, &pb.CreateSessionRequest{Name: turnSession,
		Settings: &pb.SessionSettings{SendRate: proto.Float64(0), MailboxLimit: proto.Int64(0)}})
	for i := 0; i < turnTakers && err == nil; i++ {
		_, err = d.agents.RegisterAgent(inTurns(ctx, turnTakerName(i)), &pb.RegisterAgentRequest{Role: "taker", Lease: durationpb.New(24 * time.Hour)})
	}
	return err
}

func inTurns(ctx context.Context, agent string) context.Context {
	return metadata.AppendToOutgoingContext(as(ctx, agent), "brokerd-session", turnSession)
}

// makeUp makes the call again that nobody answered.
func (t *turnTaker) makeUp(ctx context.Context, d *daemon) error {
	if t.open == nil {
		return nil
	}
	return t.do(ctx, d, t.open)
}

// do makes a call, and keeps it in mind until it is answered.
func (t *turnTaker) do(ctx context.Context, d *daemon, call func(ctx context.Context, d *daemon) error) error {
	t.open = call
	err := call(inTurns(ctx, t.name), d)
	if cut(err) {
		return err
	}
	t.open = nil
	if err != nil {
		t.record.wrong("%s: %v", t.name, err)
	}
	return nil
}

func (t *turnTaker) load(ctx context.Context, d *daemon) error {
	for {
		err := t.letGo(ctx, d)
		if err == nil {
			err = t.take(ctx, d)
		}
		if err == nil && t.has != nil {
			pause(ctx, time.Duration(t.random.IntN(4))*time.Millisecond)
			err = t.count(ctx, d)
		}
		if err != nil {
			return err
		}
		breathe(ctx, t.random)
	}
}

// take asks for something, or again for what it waits for.
func (t *turnTaker) take(ctx context.Context, d *daemon) error {
	if t.waits == nil {
		all := wishes()
		t.waits = &all[t.random.IntN(len(all))]
	}
	w, id, wait := *t.waits, requestID(), durationpb.New(time.Duration(t.random.IntN(50))*time.Millisecond)
	return t.do(ctx, d, func(ctx context.Context, d *daemon) error {
		var answer interface {
			GetOutcome() pb.AcquireOutcome
			GetFence() int64
		}
		var err error
		if w.token != "" {
			answer, err = d.tokens.AcquireToken(ctx, &pb.AcquireTokenRequest{RequestId: id, Type: "turn", Scope: w.token, Wait: wait})
		} else {
			mode := pb.LockMode_LOCK_MODE_EXCLUSIVE
			if w.shared {
				mode = pb.LockMode_LOCK_MODE_SHARED
			}
			answer, err = d.locks.AcquireLocks(ctx, &pb.AcquireLocksRequest{RequestId: id, Paths: []string{w.path}, Mode: mode, Wait: wait})
		}
		if reason(err) == "DEADLOCK" { // somebody was passed a token while he waited for another
			t.waits = nil
			return nil
		}
		if err != nil {
			return err
		}
		switch answer.GetOutcome() {
		case pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED:
			t.waits = nil
			t.has = t.record.took(w, t.name, answer.GetFence())
		case pb.AcquireOutcome_ACQUIRE_OUTCOME_BUSY:
			t.waits = nil
		}
		return nil
	})
}

// count adds one to a key, reading and writing: what it holds keeps the others from it. The write carries the fence.
func (t *turnTaker) count(ctx context.Context, d *daemon) error {
	w := t.has.wish
	key := w.path + w.token
	if w.shared {
		return nil
	}
	id, fence := requestID(), t.has.fence
	next := int64(-1)
	return t.do(ctx, d, func(ctx context.Context, d *daemon) error {
		if next < 0 { // once: the request stays the same
			got, err := d.state.GetState(ctx, &pb.GetStateRequest{Key: key})
			if err != nil && status.Code(err) != codes.NotFound {
				return err
			}
			next = got.GetEntry().GetValue().GetIntegerValue() + 1
		}
		_, err := d.state.PutState(metadata.AppendToOutgoingContext(ctx, "brokerd-fence", strconv.FormatInt(fence, 10)),
			&pb.PutStateRequest{RequestId: id, Key: key, Value: &pb.StateValue{Value: &pb.StateValue_IntegerValue{IntegerValue: next}}})
		if err == nil {
			t.record.counted(key)
		}
		return err
	})
}

// letGo releases what it has, or passes it on.
func (t *turnTaker) letGo(ctx context.Context, d *daemon) error {
	if t.has == nil {
		return nil
	}
	has, id := t.has, requestID()
	t.has = nil
	t.record.gave(has)
	if has.wish.token != "" && t.random.IntN(2) == 0 {
		to := turnTakerName(t.random.IntN(turnTakers))
		for to == t.name {
			to = turnTakerName(t.random.IntN(turnTakers))
		}
		return t.do(ctx, d, func(ctx context.Context, d *daemon) error {
			answer, err := d.tokens.PassToken(ctx, &pb.PassTokenRequest{RequestId: id, Type: "turn", Scope: has.wish.token, To: &pb.PassTokenRequest_Agent{Agent: to}})
			if err == nil {
				t.record.gaveTo(has, answer, to)
			}
			return err
		})
	}
	return t.do(ctx, d, func(ctx context.Context, d *daemon) error {
		var released bool
		var err error
		if has.wish.token != "" {
			var answer *pb.ReleaseTokenResponse
			answer, err = d.tokens.ReleaseToken(ctx, &pb.ReleaseTokenRequest{RequestId: id, Type: "turn", Scope: has.wish.token})
			released = answer.GetReleased()
		} else {
			var answer *pb.ReleaseLocksResponse
			answer, err = d.locks.ReleaseLocks(ctx, &pb.ReleaseLocksRequest{RequestId: id, Fences: []int64{has.fence}})
			released = answer.GetReleased() == 1
		}
		if err == nil && !released {
			err = fmt.Errorf("%+v was lost", *has)
		}
		return err
	})
}

func (r *turnRecord) took(w wish, who string, fence int64) *turn {
	r.known(fence)
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &turn{wish: w, who: who, fence: fence, from: time.Now()}
	r.turns = append(r.turns, t)
	return t
}

func (r *turnRecord) gave(t *turn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.to = time.Now()
}

func (r *turnRecord) gaveTo(t *turn, answer *pb.PassTokenResponse, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed[answer.GetFence()] = to
	if answer.GetAgent() != to || answer.GetFence() <= t.fence {
		r.wrong("%+v was passed to %s, and went to %v", *t, to, answer)
	}
}

func (r *turnRecord) counted(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[key]++
}

// verify compares what everybody has held, and what they have counted.
func (r *turnRecord) verify(ctx context.Context, d *daemon) error {
	for key, count := range r.counts {
		got, err := d.state.GetState(inTurns(ctx, turnTakerName(0)), &pb.GetStateRequest{Key: key})
		if err != nil {
			return fmt.Errorf("get %s: %w", key, err)
		}
		if n := got.GetEntry().GetValue().GetIntegerValue(); n != count || got.GetEntry().GetVersion() != count {
			r.wrong("%s was counted to %d, and is %v", key, count, got.GetEntry())
		}
	}
	r.verifyTurns()
	log := &turnLog{record: r, granted: map[int64]string{}}
	ctx = metadata.AppendToOutgoingContext(ctx, "brokerd-session", turnSession)
	err := listEvents(ctx, d, log.event)
	for _, t := range r.turns {
		if log.granted[t.fence] != t.who {
			r.wrong("%+v was granted to %q, says the log", *t, log.granted[t.fence])
		}
	}
	return err
}

// verifyTurns goes through all beginnings and ends in order of their time: who begins must be alone, and later
// than everybody who has ended by his fence as well.
func (r *turnRecord) verifyTurns() {
	type step struct {
		at   time.Time
		turn *turn
		ends bool
	}
	var steps []step
	for _, t := range r.turns {
		steps = append(steps, step{t.from, t, false})
		if !t.to.IsZero() {
			steps = append(steps, step{t.to, t, true})
		}
		if to, was := r.passed[t.fence]; was && to != t.who {
			r.wrong("%+v was passed to %s", *t, to)
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return a.at.Compare(b.at) })
	has := map[*turn]bool{}
	newest := map[wish]int64{} // the highest fence that has ended
	for _, s := range steps {
		t := s.turn
		if s.ends {
			delete(has, t)
			newest[t.wish] = max(newest[t.wish], t.fence)
			continue
		}
		for other := range has {
			if other.who != t.who && other.wish.conflicts(t.wish) {
				r.wrong("two hold at a time what only one may: %+v, %+v", *other, *t)
			}
		}
		for w, fence := range newest {
			if w.conflicts(t.wish) && fence >= t.fence {
				r.wrong("%+v has a fence that is not greater than %d of %+v, which ended before", *t, fence, w)
			}
		}
		has[t] = true
	}
}
