package crashtest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// A participant puts load on the broker. It lives on when the daemon is killed.
type participant interface {
	// makeUp finds out what came of what was not answered.
	makeUp(ctx context.Context, d *daemon) error
	// load goes on until the connection breaks.
	load(ctx context.Context, d *daemon) error
}

// A stage is everything that takes part.
type stage struct {
	*testing.T
	daemon     *daemon
	server     *postgrestest.Server // of the database; nil with SQLite
	recovered  bool                 // the daemon has gone on after the end of the server
	record     *record
	random     *rand.Rand
	subscriber *subscriber
	reader     *reader
	slow       *slowConsumer
	offers     *offerRecord
	sessions   []*offerer // of the coding agent that gets offers
	turns      *turnRecord
	odds       *oddJobber
	board      *board
	workers    []*taskWorker
	holders    []holder // all that hold claims
	parts      []participant

	// die ends life n of the daemon. flowing returns when every participant has made up for what was not answered.
	die func(ctx context.Context, n int, flowing func())
}

// mostKills is how often one data folder is crashed; then the next begins, since the checks take longer the more it holds.
const mostKills = 40

func TestCrash_NothingConfirmedIsLostOrDoneTwice(t *testing.T) {
	t.Parallel()
	kills := int(fromEnvironment(t, "CRASH_KILLS", 20))
	seed := fromEnvironment(t, "CRASH_SEED", rand.Int64())
	program := processtest.Build(t)
	for round := 0; kills > 0 && !t.Failed(); round++ {
		t.Run(fmt.Sprintf("round %d", round+1), func(t *testing.T) {
			t.Logf("CRASH_SEED=%d repeats it", seed)
			crash(t, program, min(kills, mostKills), uint64(seed))
		})
		kills -= mostKills
		seed++
	}
}

// crash loads and kills one daemon again and again, and compares in the end.
func crash(t *testing.T, program string, kills int, seed uint64) {
	s := newStage(t, newDaemon(t, program), seed)
	s.die = s.kill
	s.play(kills)
}

// play loads a daemon, ends it in the middle of the load and starts it again, so many times, and
// compares in the end.
func (s *stage) play(lives int) {
	s.Helper()
	ctx := s.Context()
	if deadline, limited := s.Deadline(); limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-20*time.Second)) // so that the daemon is ended
		defer cancel()
	}
	testkit.NoError(s, s.daemon.start(ctx))
	testkit.NoError(s, register(ctx, s.daemon))
	testkit.NoError(s, registerTurns(ctx, s.daemon))
	testkit.NoError(s, registerOdds(ctx, s.daemon))
	testkit.NoError(s, registerBoard(ctx, s.daemon))
	for n := range lives {
		s.liveAndDie(ctx, n)
		if n == lives-1 {
			s.checkFolder(ctx)
		}
		s.restart(ctx)
		if s.Failed() {
			s.Fatalf("after the daemon has ended %d times", n+1)
		}
	}
	s.end(ctx, lives)
	s.Logf("the daemon was ended %d times; revision %d; %d messages, %d events, %d read by arrival, %d turns, %d odd jobs, %d tasks; %v", lives, s.record.seen, len(s.record.messages),
		len(s.subscriber.events), len(s.reader.read), len(s.turns.turns), s.odds.number, len(s.board.tasks), s.record.counts)
}

func newStage(t *testing.T, d *daemon, seed uint64) *stage {
	lots := uint64(0)
	random := func() *rand.Rand {
		lots++
		return rand.New(rand.NewPCG(seed, lots))
	}
	r := newRecord(t)
	s := &stage{T: t, daemon: d, record: r, random: random(),
		subscriber: &subscriber{record: r}, reader: newReader(r, random()), slow: newSlowConsumer(r, random())}
	s.parts = []participant{
		s.subscriber, s.reader, s.slow,
		&redriver{record: r, random: random(), chosen: map[delivery]bool{}},
		newUnarySender(r, "writer-1", random()),
		newUnarySender(r, "builder-1", random()),
		newStreamSender(r, "writer-2", random()),
		newStreamSender(r, "tester-2", random()),
	}
	for _, h := range []holder{{"builder-1", "stream"}, {"builder-2", "stream"}, {"tester-1", "stream"}, {"writer-3", "stream"}} {
		s.holders = append(s.holders, h)
		s.parts = append(s.parts, &streamConsumer{record: r, holder: h, random: random()})
	}
	for _, h := range []holder{{"builder-1", "unary"}, {"builder-2", "unary"}, {"tester-1", ""}, {"tester-2", "unary"}} {
		s.holders = append(s.holders, h)
		s.parts = append(s.parts, &unaryConsumer{record: r, holder: h, random: random()})
	}
	s.offers = newOfferRecord(r)
	for _, harness := range []string{"session-1", "session-2"} {
		o := &offerer{record: s.offers, harness: harness, random: random()}
		s.sessions = append(s.sessions, o)
		s.parts = append(s.parts, o)
	}
	s.turns = &turnRecord{record: r, passed: map[int64]string{}, counts: map[string]int64{}}
	for i := range turnTakers {
		s.parts = append(s.parts, &turnTaker{record: s.turns, name: turnTakerName(i), random: random()})
	}
	s.odds = newOddJobber(r, random())
	s.parts = append(s.parts, s.odds)
	s.board = newBoard(r)
	s.parts = append(s.parts, &planner{board: s.board, random: random()})
	for i := range boardWorkers {
		w := &taskWorker{board: s.board, name: boardWorker(i), random: random()}
		s.workers = append(s.workers, w)
		s.parts = append(s.parts, w)
	}
	s.holders = append(s.holders, s.slow.holder, holder{"writer-1", ""}, holder{"writer-2", ""})
	return s
}

// liveAndDie loads the running daemon until it ends.
func (s *stage) liveAndDie(ctx context.Context, n int) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	var flowing, ended sync.WaitGroup
	for _, p := range s.parts {
		flowing.Add(1)
		ended.Go(func() {
			err := p.makeUp(running, s.daemon)
			flowing.Done()
			if err == nil {
				err = p.load(running, s.daemon)
			}
			if !cut(err) {
				s.record.wrong("%T: %v", p, err)
			}
		})
	}
	s.die(running, n, flowing.Wait)
	stop()
	ended.Wait()
}

// kill kills the daemon after a random time.
func (s *stage) kill(ctx context.Context, n int, flowing func()) {
	life := time.Duration(20+s.random.IntN(380)) * time.Millisecond
	switch {
	case n%7 == 3: // while they make up
		life = time.Duration(s.random.IntN(30)) * time.Millisecond
	case n%10 == 5: // claims run out
		life += 3 * time.Second
		fallthrough
	default:
		flowing()
	}
	pause(ctx, life)
	s.daemon.kill()
}

// restart starts the daemon, unless it has recovered, and checks its database.
func (s *stage) restart(ctx context.Context) {
	s.Helper()
	s.record.raise()
	if !s.recovered {
		s.record.started()
		testkit.NoError(s, s.daemon.start(ctx))
	}
	s.recovered = false
	s.check(ctx)
}

// check has the broker check its database.
func (s *stage) check(ctx context.Context) {
	s.Helper()
	found, err := s.daemon.admin.CheckDatabase(ctx, &pb.CheckDatabaseRequest{})
	testkit.NoError(s, err)
	if len(found.GetProblems()) > 0 {
		s.Errorf("the database is not sound: %q", found.GetProblems())
	}
	if found.GetRevision() < s.record.floor {
		s.Errorf("the counter is at %d, and was at %d before", found.GetRevision(), s.record.floor)
	}
}

// checkFolder checks the database while no daemon runs on it.
func (s *stage) checkFolder(ctx context.Context) {
	s.Helper()
	if s.recovered {
		return
	}
	if err := s.daemon.Check(ctx); err != nil {
		s.Error(err)
	}
}

// end makes up for everything, empties all mailboxes, and compares.
func (s *stage) end(ctx context.Context, lives int) {
	for _, p := range s.parts {
		if err := p.makeUp(ctx, s.daemon); err != nil {
			s.Fatalf("%T: %v", p, err)
		}
	}
	s.drain(ctx)
	testkit.NoError(s, s.reader.finish(ctx, s.daemon))
	for _, session := range s.sessions {
		if lives == mostKills { // a shorter run does not wait for a minute
			testkit.NoError(s, session.awaitReturn(ctx, s.daemon))
		}
		testkit.NoError(s, session.finish(ctx, s.daemon))
	}
	testkit.NoError(s, s.offers.empty(ctx, s.daemon, s.random))
	s.verify(ctx)
	if err := s.daemon.terminate(); err != nil {
		s.Errorf("the daemon did not stop in order: %v\n%s", err, s.daemon.Stderr())
	}
	s.checkFolder(ctx)
}

// drain claims and acks until nothing is left but the mail of the reader and of modelAgent.
func (s *stage) drain(ctx context.Context) {
	testkit.NoError(s, s.slow.ack(ctx, s.daemon, time.Now().Add(time.Hour)))
	for left := true; left; {
		left = false
		for _, h := range s.holders {
			answer, err := s.daemon.messages.ClaimMessages(as(ctx, h.agent), &pb.ClaimMessagesRequest{
				Consumer: h.consumer, Max: 1000, ClaimFor: durationpb.New(time.Minute)})
			testkit.NoError(s, err)
			claims := took(s.record, h, answer)
			if len(claims) > 0 {
				next := ackCall(claims)
				s.record.ask(acked, claims, false)
				testkit.NoError(s, next.do(as(ctx, h.agent), s.daemon))
				s.record.done(claims)
			}
			left = left || answer.GetEmptyReason() != pb.EmptyReason_EMPTY_REASON_EMPTY
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// verify compares what the broker has with the record.
func (s *stage) verify(ctx context.Context) {
	s.check(ctx)
	st, err := s.daemon.admin.GetStatus(ctx, &pb.GetStatusRequest{})
	testkit.NoError(s, err)
	if st.GetWaiting() != 0 || st.GetClaimed() != 0 {
		s.Errorf("everything was drained, and there is still %v", st)
	}
	testkit.NoError(s, s.subscriber.follow(ctx, s.daemon, st.GetRevision()))
	truth, err := readTruth(ctx, s.daemon)
	testkit.NoError(s, err)
	s.record.verify(truth)
	s.offers.verify(truth)
	replay := newReplay(s.record, truth, s.subscriber.events)
	testkit.NoError(s, listEvents(ctx, s.daemon, replay.event))
	replay.finish()
	testkit.NoError(s, s.turns.verify(ctx, s.daemon))
	testkit.NoError(s, s.odds.verify(ctx, s.daemon))
	testkit.NoError(s, s.board.verify(ctx, s.daemon, s.workers))
	for revision, m := range s.record.byRevision {
		_, there := truth.deliveries[delivery{revision, s.reader.agent}]
		if there && !s.reader.read[revision] && m.wire.GetTtl() == nil {
			s.record.wrong("the reader has missed %s (%d)", m.tag, revision)
		}
	}
}

// listEvents calls f with every event, in order.
func listEvents(ctx context.Context, d *daemon, f func(*pb.Event)) error {
	request := &pb.ListEventsRequest{PageSize: 1000}
	for {
		page, err := d.events.ListEvents(ctx, request)
		if err != nil {
			return err
		}
		for _, e := range page.GetEvents() {
			f(e)
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return nil
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
