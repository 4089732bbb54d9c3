package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const id = "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f"

type answer struct {
	Text string
	At   time.Time
}

// A kit makes requests and counts how often they were carried out.
type kit struct {
	t     *testing.T
	dir   string
	clock *testkit.JumpClock
	store *store.Store
	done  int
}

func newKit(t *testing.T) *kit {
	t.Helper()
	k := &kit{t: t, dir: t.TempDir(), clock: testkit.NewJumpClock(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))}
	k.open()
	k.exec(`INSERT INTO sessions (id, name, description, created_at, revision) VALUES (2, 'other', '', 0, 0)`)
	return k
}

func (k *kit) open() {
	k.t.Helper()
	k.store = testkit.Store(k.t, k.dir, k.clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations())
}

func (k *kit) exec(query string) {
	k.t.Helper()
	err := k.store.Write(context.Background(), func(tx *store.Tx) error {
		tx.Exec(query)
		return nil
	})
	if err != nil {
		k.t.Fatal(err)
	}
}

func (k *kit) restart() {
	k.t.Helper()
	if err := k.store.Close(); err != nil {
		k.t.Fatal(err)
	}
	k.open()
}

func as(session, agent string) context.Context {
	return identity.NewContext(context.Background(), identity.Caller{Access: identity.Agent, Session: session, Agent: agent})
}

// ask makes a request; fail is what carrying it out returns.
func (k *kit) ask(ctx context.Context, rpc, id, reason string, fail error) (answer, bool, error) {
	k.t.Helper()
	req, err := idempotency.Of(ctx, rpc, id, &pb.DeregisterAgentRequest{RequestId: id, Reason: reason})
	if err != nil {
		k.t.Fatal(err)
	}
	var a answer
	var seen bool
	err = k.store.Write(context.Background(), func(tx *store.Tx) error {
		var err error
		seen, err = req.Do(tx, &a, func() error {
			k.done++
			a = answer{fmt.Sprintf("%s, time %d", reason, k.done), tx.Now()}
			return fail
		})
		return err
	})
	return a, seen, err
}

func TestDo_SameRequestGetsTheSameAnswerAndDoesNothingOverARestartToo(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	first, seen, err := k.ask(as("default", "a"), "Do", id, "x", nil)
	if err != nil || seen {
		t.Fatal(seen, err)
	}
	for range 2 {
		k.clock.Advance(20 * time.Minute)
		again, seen, err := k.ask(as("default", "a"), "Do", id, "x", nil)
		if err != nil || !seen || again != first || k.done != 1 {
			t.Errorf("again: %v, seen %v, %v, carried out %d times; want %v", again, seen, err, k.done, first)
		}
		k.restart()
	}
}

func TestDo_AnotherBodyUnderTheSameIdIsRefused(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	if _, _, err := k.ask(as("default", "a"), "Do", id, "x", nil); err != nil {
		t.Fatal(err)
	}
	_, _, err := k.ask(as("default", "a"), "Do", id, "y", nil)
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Exists || f.Reason != "REQUEST_ID_REUSED" || k.done != 1 {
		t.Errorf("got %v, carried out %d times", err, k.done)
	}
}

func TestDo_IdsArePerSessionCallerAndRPC(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	for _, c := range []struct {
		ctx context.Context
		rpc string
	}{
		{as("default", "a"), "Do"}, {as("default", "b"), "Do"}, {as("other", "a"), "Do"}, {as("default", "a"), "Undo"}, {as("default", ""), "Do"},
	} {
		if _, seen, err := k.ask(c.ctx, c.rpc, id, "x", nil); seen || err != nil {
			t.Errorf("%v: seen %v, %v", identity.FromContext(c.ctx), seen, err)
		}
	}
}

func TestDo_IdsEndWithTheirSession(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	if _, _, err := k.ask(as("other", "a"), "Do", id, "x", nil); err != nil {
		t.Fatal(err)
	}
	k.exec(`DELETE FROM sessions WHERE name = 'other'`)
	refused := errors.New("there is no such session")
	if _, seen, err := k.ask(as("other", "a"), "Do", id, "x", refused); seen || !errors.Is(err, refused) {
		t.Errorf("after the deletion: seen %v, %v", seen, err)
	}
	k.exec(`INSERT INTO sessions (id, name, description, created_at, revision) VALUES (3, 'other', '', 0, 0)`)
	for _, want := range []bool{false, true} {
		if _, seen, err := k.ask(as("other", "a"), "Do", id, "x", nil); seen != want || err != nil {
			t.Errorf("in the new session: seen %v, want %v, %v", seen, want, err)
		}
	}
}

func TestDo_OnlySuccessesAreKept(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	refused := errors.New("refused")
	if _, _, err := k.ask(as("default", "a"), "Do", id, "x", refused); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if _, seen, err := k.ask(as("default", "a"), "Do", id, "y", nil); seen || err != nil {
		t.Errorf("after a failure: seen %v, %v", seen, err)
	}
}

func TestDo_WithoutAnIdEveryRequestIsCarriedOut(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	for range 2 {
		if _, seen, err := k.ask(as("default", "a"), "Do", "", "x", nil); seen || err != nil {
			t.Error(seen, err)
		}
	}
	if k.done != 2 {
		t.Errorf("carried out %d times", k.done)
	}
}

func TestDo_AnIdIsForgottenAfterAnHour(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	if _, _, err := k.ask(as("default", "a"), "Do", id, "x", nil); err != nil {
		t.Fatal(err)
	}
	k.clock.Advance(time.Hour + 1)
	if _, seen, err := k.ask(as("default", "a"), "Do", id, "y", nil); seen || err != nil {
		t.Errorf("after an hour: seen %v, %v", seen, err)
	}
	if _, seen, err := k.ask(as("default", "a"), "Do", id, "y", nil); !seen || err != nil {
		t.Errorf("the new one: seen %v, %v", seen, err)
	}
}

func TestDo_JumpsOfTheWallClockChangeNothing(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{time.Hour + 1, 30 * time.Hour, -time.Hour, -30 * time.Hour} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, restart %v", jump, restart), func(t *testing.T) {
				k := newKit(t)
				k.clock.Advance(time.Hour)
				first, _, err := k.ask(as("default", "a"), "Do", id, "x", nil)
				if err != nil {
					t.Fatal(err)
				}
				k.clock.Advance(time.Hour - time.Minute)
				k.clock.Jump(jump)
				if restart {
					k.restart()
				}
				if _, _, err := k.ask(as("default", "a"), "Do", uuid.NewString(), "y", nil); err != nil { // old ones go now
					t.Fatal(err)
				}
				if again, seen, err := k.ask(as("default", "a"), "Do", id, "x", nil); err != nil || !seen || again != first {
					t.Errorf("after 59 min of uptime: %v, seen %v, %v; want %v", again, seen, err, first)
				}
				k.clock.Advance(time.Hour)
				if _, seen, err := k.ask(as("default", "a"), "Do", id, "x", nil); err != nil || seen {
					t.Errorf("after 119 min of uptime: seen %v, %v", seen, err)
				}
			})
		}
	}
}

func TestDo_OldAnswersMakeRoomForNewOnes(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	add := func(n int) {
		for range n {
			if _, _, err := k.ask(as("default", "a"), "Do", uuid.NewString(), "x", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	kept := func() (n int) {
		t.Helper()
		err := k.store.Read(context.Background(), func(snap *store.Snapshot) error {
			return snap.QueryRow(`SELECT count(*) FROM requests`).Scan(&n)
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	add(40)
	if n := kept(); n != 40 {
		t.Errorf("%d kept within the hour, want 40", n)
	}
	k.clock.Advance(time.Hour + 1)
	add(20)
	if n := kept(); n != 20 {
		t.Errorf("%d kept, want the 20 new ones", n)
	}
}

// A client that repeats a request waits for what is left of its time.
func TestOf_TheWaitIsNoPartOfTheRequest(t *testing.T) {
	t.Parallel()
	of := func(question string, wait time.Duration) string {
		ask := &pb.AskRequest{Message: &pb.Message{Body: question}, Wait: durationpb.New(wait)}
		r, err := idempotency.Of(as("default", "a"), "Ask", id, ask)
		if err != nil || ask.GetWait().AsDuration() != wait {
			t.Errorf("%v, %v", ask, err)
		}
		return string(r.Hash)
	}
	if of("why?", time.Minute) != of("why?", time.Second) || of("why?", time.Minute) == of("how?", time.Minute) {
		t.Error("the wait is compared, or the question is not")
	}
}

func TestOf_RefusesWhatIsNoUUID(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"1", "0197f3a05c4e7b1d8f219a0b1c2d3e4f", "{0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f}",
		"urn:uuid:0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f", "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4g", id + "0",
	} {
		_, err := idempotency.Of(as("default", "a"), "Do", bad, &pb.DeregisterAgentRequest{})
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Invalid || !slices.ContainsFunc(f.Violations, func(v fault.Violation) bool { return v.Field == "request_id" }) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
