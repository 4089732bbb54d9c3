package histories_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// mostHeld is how much a client holds at a time.
const mostHeld = 3

// A turnsClient takes locks and tokens, several at a time, and lets them go.
type turnsClient struct {
	*client
	menu   *menu
	locks  pb.LockServiceClient
	tokens pb.TokenServiceClient
	state  pb.StateServiceClient
	held   map[int]int64   // asks, with their fences
	waits  map[int]bool    // asks that it has a ticket for; true = that is kept
	fates  map[int][]*fate // of those: one for each time it has asked
	former []turnCall      // what it held once
	redo   *turnCall       // a release that nobody answered: made again before anything else
}

func newTurnsClient(c *client, m *menu) func() error {
	t := &turnsClient{client: c, menu: m, held: map[int]int64{}, waits: map[int]bool{}, fates: map[int][]*fate{},
		locks: pb.NewLockServiceClient(c.daemon.conn), tokens: pb.NewTokenServiceClient(c.daemon.conn), state: pb.NewStateServiceClient(c.daemon.conn)}
	if c.number%2 == 1 {
		t.locks = &lockStream{LockServiceClient: t.locks}
	}
	return t.next
}

// next makes one call, of any kind.
func (t *turnsClient) next() error {
	if t.redo != nil {
		return t.release(*t.redo)
	}
	for _, ask := range slices.Sorted(maps.Keys(t.waits)) { // a ticket that is not kept must not lapse
		if !t.waits[ask] || t.random.IntN(3) == 0 {
			if t.random.IntN(3) == 0 {
				return t.release(turnCall{verb: release, ask: ask})
			}
			return t.acquire(ask)
		}
	}
	n := t.random.IntN(100)
	if len(t.held) > 0 && (n < 35 || len(t.held) >= mostHeld && n < 60) {
		return t.letGo()
	}
	switch {
	case n < 84:
		return t.acquire(t.choose())
	case n < 90:
		return t.extend()
	case n < 95:
		return t.fenced()
	case n < 96:
		return t.release(turnCall{verb: releaseAll})
	default:
		return t.see()
	}
}

// choose returns an ask that does not overlap what the client has, or is the same.
func (t *turnsClient) choose() int {
	for {
		ask := t.random.IntN(len(t.menu.asks))
		free := true
		for other := range t.held {
			free = free && (other == ask || !t.menu.overlaps[ask][other])
		}
		for other := range t.waits {
			free = free && (other == ask || !t.menu.overlaps[ask][other])
		}
		if free {
			return ask
		}
	}
}

// one returns something that the client holds, or held once.
func (t *turnsClient) one() (turnCall, bool) {
	if len(t.former) > 0 && t.random.IntN(4) == 0 {
		return t.former[t.random.IntN(len(t.former))], true
	}
	held := slices.Sorted(maps.Keys(t.held))
	if len(held) == 0 {
		return turnCall{}, false
	}
	ask := held[t.random.IntN(len(held))]
	return turnCall{ask: ask, fence: t.held[ask]}, true
}

// An acquisition is the answer to a request for locks or a token.
type acquisition interface {
	GetOutcome() pb.AcquireOutcome
	GetFence() int64
	GetTicket() int64
}

func (t *turnsClient) acquire(ask int) error {
	a := t.menu.asks[ask]
	wait := time.Duration(max(0, t.random.IntN(20)-6)) * time.Millisecond
	_, kept := t.waits[ask]
	kept = kept && t.waits[ask] || t.random.IntN(4) == 0
	var answer acquisition
	id := newID()
	if t.random.IntN(3) == 0 {
		id = "" // to ask again for what one has or waits for is harmless
	}
	cuts := t.cuts
	from, to, _, err := t.call(true, func(ctx context.Context) (err error) {
		if a.token != "" {
			answer, err = t.tokens.AcquireToken(ctx, &pb.AcquireTokenRequest{RequestId: id, Type: "turn", Scope: a.token, Wait: durationpb.New(wait), KeepTicket: kept})
		} else {
			answer, err = t.locks.AcquireLocks(ctx, &pb.AcquireLocksRequest{RequestId: id, Paths: a.paths, Mode: a.mode, Wait: durationpb.New(wait), KeepTicket: kept})
		}
		return err
	})
	c := turnCall{owner: t.number, ask: ask}
	record := func(verb turnVerb, a turnAnswer) {
		c.verb = verb
		t.add(from, to, c, a)
	}
	queues := wait > 0 || kept
	became := &fate{}
	all := slices.Concat(t.fates[ask], []*fate{became})
	if queues {
		c.cut = t.cuts > cuts
		record(request, turnAnswer{fate: became})
		if c.cut {
			t.addDoubtful(from, to, c)
		}
		c.cut = false
	}
	why, _ := reason(err)
	lost := queues && err == nil && answer.GetOutcome() == pb.AcquireOutcome_ACQUIRE_OUTCOME_BUSY // aborted when the wait had just ended
	delete(t.waits, ask)
	delete(t.fates, ask)
	switch {
	case why == "DEADLOCK" && queues, lost:
		record(aborted, turnAnswer{})
		return nil
	case err != nil:
		return fmt.Errorf("acquire %v: %w", a, err)
	}
	switch answer.GetOutcome() {
	case pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED:
		t.held[ask] = answer.GetFence()
		for _, f := range all {
			f.fence = answer.GetFence()
		}
		verb := take
		if queues {
			verb = granted
		}
		record(verb, turnAnswer{number: answer.GetFence()})
	case pb.AcquireOutcome_ACQUIRE_OUTCOME_QUEUED:
		t.waits[ask], t.fates[ask] = kept, all
		became.ticket = answer.GetTicket()
		record(queued, turnAnswer{number: answer.GetTicket()})
	case pb.AcquireOutcome_ACQUIRE_OUTCOME_BUSY:
		record(busy, turnAnswer{})
	default:
		return fmt.Errorf("acquire %v: %v", a, answer)
	}
	return nil
}

// letGo releases something, or passes it on.
func (t *turnsClient) letGo() error {
	c, _ := t.one()
	token := t.menu.asks[c.ask].token != ""
	switch {
	case token && (t.menu.passes || !t.mortal) && t.random.IntN(2) == 0 && t.held[c.ask] == c.fence:
		return t.pass(c)
	case token:
		c.fence = 0
	case t.held[c.ask] == c.fence && t.random.IntN(3) == 0:
		c.fence = 0 // by path
	}
	c.verb = release
	return t.release(c)
}

func (t *turnsClient) release(c turnCall) error {
	c.owner = t.number
	a := t.menu.asks[c.ask]
	var answer turnAnswer
	from, to, known, err := t.change(func(ctx context.Context, id string) error {
		if a.token != "" && c.verb == release {
			out, err := t.tokens.ReleaseToken(ctx, &pb.ReleaseTokenRequest{RequestId: id, Type: "turn", Scope: a.token})
			answer = turnAnswer{done: out.GetReleased(), number: out.GetRevision()}
			return err
		}
		request := &pb.ReleaseLocksRequest{RequestId: id}
		switch {
		case c.verb == releaseAll:
			request.All = true
		case c.fence != 0:
			request.Fences = []int64{c.fence}
		default:
			request.Paths = a.paths
		}
		out, err := t.locks.ReleaseLocks(ctx, request)
		answer = turnAnswer{released: int(out.GetReleased()), cancel: int(out.GetCancelled()), number: out.GetRevision()}
		return err
	})
	if err != nil {
		return fmt.Errorf("release %v: %w", a, err)
	}
	if !known {
		t.redo = &c
		t.add(from, to, c, nil)
		return nil
	}
	t.redo = nil
	t.forget(c)
	t.add(from, to, c, answer)
	return nil
}

// forget notes that something is not held any more.
func (t *turnsClient) forget(c turnCall) {
	for _, ask := range slices.Sorted(maps.Keys(t.held)) {
		fence := t.held[ask]
		if c.verb == releaseAll && t.menu.asks[ask].token == "" || c.verb != releaseAll && ask == c.ask && (c.fence == 0 || c.fence == fence) {
			t.former = append(t.former, turnCall{ask: ask, fence: fence})
			delete(t.held, ask)
		}
	}
	for ask := range t.waits {
		if c.verb == releaseAll && t.menu.asks[ask].token == "" || c.verb == release && ask == c.ask && c.fence == 0 {
			delete(t.waits, ask)
			delete(t.fates, ask)
		}
	}
}

func (t *turnsClient) pass(c turnCall) error {
	c.verb, c.owner = pass, t.number
	c.to = (t.number + 1 + t.random.IntN(clients-1)) % clients
	a := t.menu.asks[c.ask]
	var out *pb.PassTokenResponse
	from, to, known, err := t.change(func(ctx context.Context, id string) (err error) {
		out, err = t.tokens.PassToken(ctx, &pb.PassTokenRequest{RequestId: id, Type: "turn", Scope: a.token,
			To: &pb.PassTokenRequest_Agent{Agent: agentName(c.to)}})
		return err
	})
	why, _ := reason(err)
	switch {
	case why == "TOKEN_LOST":
		t.add(from, to, c, turnAnswer{})
	case err != nil:
		return fmt.Errorf("pass %v: %w", a, err)
	case !known:
		t.add(from, to, c, nil)
	case out.GetAgent() != agentName(c.to):
		return fmt.Errorf("pass %v to %s: it went to %v", a, agentName(c.to), out)
	default:
		t.add(from, to, c, turnAnswer{done: true, number: out.GetFence()})
	}
	t.forget(c)
	return nil
}

// extend asks for more time for something, which says whether it is held.
func (t *turnsClient) extend() error {
	c, some := t.one()
	a := t.menu.asks[c.ask]
	if !some || a.token != "" { // a token has no fence in the call
		return t.see()
	}
	c.verb, c.owner = extend, t.number
	from, to, _, err := t.call(true, func(ctx context.Context) error {
		_, err := t.locks.ExtendLocks(ctx, &pb.ExtendLocksRequest{Fences: []int64{c.fence}, MaxHold: durationpb.New(time.Hour)})
		return err
	})
	if why, _ := reason(err); err != nil && why != "LOCK_LOST" {
		return fmt.Errorf("extend %v: %w", a, err)
	}
	t.add(from, to, c, turnAnswer{done: err == nil})
	return nil
}

// fenced changes something else with a fence, which says whether that is held.
func (t *turnsClient) fenced() error {
	c, some := t.one()
	if !some {
		return t.see()
	}
	c.verb, c.owner = fenced, t.number
	var out *pb.PutStateResponse
	id := newID()
	from, to, _, err := t.call(true, func(ctx context.Context) (err error) {
		ctx = metadata.AppendToOutgoingContext(ctx, "brokerd-fence", fmt.Sprint(c.fence))
		out, err = t.state.PutState(ctx, &pb.PutStateRequest{RequestId: id, Key: t.agent, Value: text("x")})
		return err
	})
	if why, _ := reason(err); err != nil && why != "FENCE_LOST" {
		return fmt.Errorf("put with fence %d: %w", c.fence, err)
	}
	t.add(from, to, c, turnAnswer{done: err == nil, number: out.GetEntry().GetRevision()})
	return nil
}

// see looks at all locks, or at a token.
func (t *turnsClient) see() error {
	c := turnCall{verb: list, owner: t.number, ask: t.random.IntN(len(t.menu.asks))}
	if t.menu.asks[c.ask].token != "" {
		return t.look(c)
	}
	var out *pb.ListLocksResponse
	from, to, _, err := t.call(true, func(ctx context.Context) (err error) {
		out, err = t.locks.ListLocks(ctx, &pb.ListLocksRequest{PageSize: 1000})
		return err
	})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	a := turnAnswer{number: out.GetRevision()}
	for _, l := range out.GetLocks() {
		a.grants = append(a.grants, place{ownerOf(l.GetAgent()), t.menu.find(l.GetPaths(), l.GetMode()), revision{n: l.GetFence()}, 0})
	}
	for _, k := range out.GetTickets() {
		a.tickets = append(a.tickets, place{ownerOf(k.GetAgent()), t.menu.find(k.GetPaths(), k.GetMode()), revision{n: k.GetTicket()}, 0})
	}
	t.add(from, to, c, a)
	return nil
}

func (t *turnsClient) look(c turnCall) error {
	c.verb = look
	var out *pb.GetTokenResponse
	from, to, _, err := t.call(true, func(ctx context.Context) (err error) {
		out, err = t.tokens.GetToken(ctx, &pb.GetTokenRequest{Type: "turn", Scope: t.menu.asks[c.ask].token})
		return err
	})
	if status.Code(err) == codes.NotFound { // nobody has ever asked for it
		return nil
	}
	if err != nil {
		return fmt.Errorf("get a token: %w", err)
	}
	a := turnAnswer{number: out.GetRevision()}
	if token := out.GetToken(); token.GetAgent() != "" {
		a.grants = append(a.grants, place{ownerOf(token.GetAgent()), c.ask, revision{n: token.GetFence()}, 0})
	}
	for _, k := range out.GetTickets() {
		a.tickets = append(a.tickets, place{ownerOf(k.GetAgent()), c.ask, revision{n: k.GetTicket()}, 0})
	}
	t.add(from, to, c, a)
	return nil
}

// ownerOf is the number of an agent.
func ownerOf(name string) int {
	var n int
	_, _ = fmt.Sscanf(strings.TrimPrefix(name, "client-"), "%d", &n)
	return n
}
