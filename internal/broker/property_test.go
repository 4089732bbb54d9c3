package broker_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// TestDelivery_EveryHistoryGoesAsTheModelSays tries random histories on a real daemon and on the model, and compares
// the two after every step.
func TestDelivery_EveryHistoryGoesAsTheModelSays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		h := newHistory(rt)
		actions := h.actions()
		names := oneOf(slices.Sorted(maps.Keys(actions)))
		rt.Repeat(map[string]func(*rapid.T){
			"":     h.compare,
			"step": func(t *rapid.T) { actions[names.Draw(t, "what")](t) },
		})
		if err := h.differs(true); err != nil { // the database is checked when the broker stops
			rt.Fatal(err)
		}
	})
}

// actions are what can happen, the more likely things several times. In a narrow history, which has one queue only,
// that is what moves its deliveries.
func (h *history) actions() map[string]func(*rapid.T) {
	actions := map[string]func(*rapid.T){
		"send":         h.send,
		"send more":    h.send,
		"claim":        h.claim,
		"claim more":   h.claim,
		"claim again":  h.claim,
		"ack":          h.ack,
		"nack":         h.nack,
		"nack another": h.nack,
		"release":      h.release,
		"cancel":       h.cancel,
		"redrive":      h.redrive,
		"extend":       h.extend,
		"configure":    h.configure,
		"advance":      h.advance,
		"advance more": h.advance,
		"restart":      h.restart,
		"batch":        h.batch,
		"batch more":   h.batch,
	}
	if h.streaming {
		maps.Copy(actions, map[string]func(*rapid.T){
			"open stream":      h.openStream,
			"open another":     h.openStream,
			"close stream":     h.closeStream,
			"stream ack":       h.streamAck,
			"stream ack more":  h.streamAck,
			"stream ack again": h.streamAck,
		})
	}
	if !h.narrow {
		maps.Copy(actions, map[string]func(*rapid.T){
			"purge":       h.purge,
			"advance far": h.advanceFar,
			"register":    h.register,
			"deregister":  h.deregister,
			"subscribe":   h.subscribe,
			"unsubscribe": h.unsubscribe,
		})
	}
	return actions
}

// oneOf draws from a list evenly; rapid.SampledFrom prefers what stands first.
func oneOf[V any](list []V) *rapid.Generator[V] {
	bit := rapid.Bool()
	return rapid.Custom(func(t *rapid.T) V {
		n := 0
		for range 10 {
			n <<= 1
			if bit.Draw(t, "bit") {
				n++
			}
		}
		return list[n*len(list)>>10]
	})
}

// numbers draws from least to most, evenly.
func numbers(least, most int) *rapid.Generator[int] {
	list := make([]int, 0, most-least+1)
	for n := least; n <= most; n++ {
		list = append(list, n)
	}
	return oneOf(list)
}

var (
	someAgents   = oneOf([]string{"ann", "bob", "cat"})
	someCallers  = oneOf([]string{"ann", "bob", "cat", ""})
	someRoles    = oneOf([]string{"red", "red", "blue", ""})
	someChannels = oneOf([]string{"news", "urgent"})
	someKinds    = oneOf([]string{"message", "work", "message", "work", "message", "work", "message", "work", "nudge", "halt", "resume"})
	someBoxes    = oneOf([]string{"ann", "bob", "cat", "role:red", "role:blue", "channel:news", "channel:urgent"})
	someTargets  = oneOf([]string{
		"ann", "bob", "cat", "role:red", "role:red", "role:blue", "channel:news", "channel:urgent", "?a*", "everyone",
	})
	someTTLs   = oneOf([]time.Duration{2 * time.Second, 0, 40 * time.Second, 0})
	someDelays = oneOf([]time.Duration{0, time.Second, 0, 33 * time.Second, 0})
	someKeys   = oneOf([]string{"k", "", "k"})
	someClaims = oneOf([]time.Duration{0, time.Second, 20 * time.Second, 2 * time.Minute})
)

// A history is what is done to a daemon and to the model alike.
type history struct {
	*apptest.Broker
	m       *model
	inboxes map[string]inbox
	narrow  bool   // everything goes to one queue
	key     string // narrow: under this ordering key

	writer  *heldWriter
	suspend func() // in the first part of an action of a batch: ends the part
	batched bool   // in a batch

	streaming bool // agents may open streams
	streams   map[streamName]*openStream
	adopted   []*parcel             // what streams have received since the last look
	rested    []*parcel             // what was ready at the last look
	ahead     map[*parcel][]*parcel // what was ready, with a place before it, when a message was sent since the last look

	compared int            // steps
	finished map[int64]bool // messages of which each delivery was finished at the last look
}

func newHistory(t *rapid.T) *history {
	writer := newHeldWriter()
	h := &history{
		Broker:   apptest.Start(t, apptest.WithFakeClock(), apptest.With(writer.configure)),
		writer:   writer,
		m:        &model{agents: map[string]*member{}, barriers: map[string]*barrier{}},
		inboxes:  map[string]inbox{},
		finished: map[int64]bool{},
		narrow:   numbers(0, 2).Draw(t, "narrow") > 0,
		key:      oneOf([]string{"", "k"}).Draw(t, "one key"),
		streams:  map[streamName]*openStream{},
		ahead:    map[*parcel][]*parcel{},
	}
	h.m.now = h.Clock.Now()
	h.streaming = rapid.Bool().Draw(t, "streaming")
	h.configure(t)
	blue := "blue"
	if h.narrow {
		blue = "red"
	}
	h.enrol(t, "ann", "red")
	h.enrol(t, "bob", "red")
	h.enrol(t, "cat", blue)
	h.subscribe(t)
	return h
}

// call calls an RPC as an agent, or as an operator without a name.
func call[C, Q, A any](h *history, as string, client func(grpc.ClientConnInterface) C,
	rpc func(C, context.Context, Q, ...grpc.CallOption) (A, error), q Q,
) (A, error) {
	run := func() (A, error) {
		ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
		defer cancel()
		return rpc(client(h.Conn(as)), ctx, q)
	}
	return perform(h, run)
}

// perform makes a call, which in a batch has two parts.
func perform[A any](h *history, run func() (A, error)) (A, error) {
	if h.suspend == nil {
		return run()
	}
	return inBatch(h, run)
}

// refuses checks the refusal of a call: none if reason is empty. It reports whether there is one.
func refuses(t *rapid.T, err error, code codes.Code, reason string) bool {
	if reason == "" {
		code = codes.OK
	}
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Fatalf("the broker says %v (%s); the model %v (%s)", err, testkit.Reason(err), code, reason)
	}
	return err != nil
}

// stranger is the reason for which a caller is refused that is not registered.
func (h *history) stranger(as string) string {
	if as == "" || h.m.registered(as) {
		return ""
	}
	return "AGENT_NOT_REGISTERED"
}

func (h *history) send(t *rapid.T) {
	sender := someCallers.Draw(t, "sender")
	var messages []*pb.Message
	for range numbers(1, 3).Draw(t, "messages") {
		messages = append(messages, h.message(t))
	}
	reason, code := h.stranger(sender), codes.FailedPrecondition
	routes := make([][]string, len(messages))
	for i, msg := range messages {
		if reason == "" && (&parcel{kind: msg.Type}).directive() && !h.m.mayDirect(sender) {
			reason, code = "NOT_A_DIRECTOR", codes.PermissionDenied
		}
		var ok bool
		if routes[i], ok = h.m.route(sender, msg); !ok && reason == "" {
			reason, code = "AGENT_NOT_FOUND", codes.NotFound
			if msg.GetTarget().GetRole() != "" {
				reason = "ROLE_NOT_FOUND"
			}
		}
	}
	out, err := call(h, sender, pb.NewMessageServiceClient, pb.MessageServiceClient.SendMessages, &pb.SendMessagesRequest{Messages: messages})
	if refuses(t, err, code, reason) {
		return
	}
	for i, r := range out.Results {
		var got, want []string
		for _, to := range r.Recipients {
			got = append(got, to.Mailbox+" "+to.Outcome.String())
		}
		for _, box := range routes[i] {
			outcome := pb.RecipientOutcome_RECIPIENT_OUTCOME_REFUSED
			if p := h.parcel(messages[i], r, box, sender); p.directive() || !h.m.full(box) {
				outcome = pb.RecipientOutcome_RECIPIENT_OUTCOME_QUEUED
				h.m.put(p)
				h.ahead[p] = h.m.where(func(o *parcel) bool { return o != p && h.before(o, p) })
			}
			want = append(want, box+" "+outcome.String())
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Fatalf("recipients (-model +broker):\n%s", diff)
		}
		h.m.direct(messages[i].Type, routes[i], r.Revision)
	}
}

// message draws a message.
func (h *history) message(t *rapid.T) *pb.Message {
	m := toRole("red", key(h.key))
	if !h.narrow {
		m = &pb.Message{Target: targetOf(someTargets.Draw(t, "target")), OrderingKey: someKeys.Draw(t, "key"), Type: someKinds.Draw(t, "type")}
		if h.streaming && (m.Type == "halt" || m.Type == "resume") {
			m.Type = "work" // what a stream receives says nothing of the gate at that time
		}
		switch m.Target.To.(type) {
		case *pb.Target_Role, *pb.Target_Channel:
			m.Reach = oneOf([]pb.Reach{pb.Reach_REACH_ALL, pb.Reach_REACH_ONE, pb.Reach_REACH_ONE}).Draw(t, "reach")
		}
	}
	m.Priority = int32(numbers(1, 10).Draw(t, "priority"))
	m.MaxAttempts = int32(numbers(0, 2).Draw(t, "max_attempts"))
	if d := someTTLs.Draw(t, "ttl"); d > 0 {
		m.Ttl = durationpb.New(d)
	}
	if (&parcel{kind: m.Type}).directive() {
		m.OrderingKey = ""
		if m.Reach == pb.Reach_REACH_ONE {
			m.Reach = pb.Reach_REACH_ALL
		}
		return m
	}
	if d := someDelays.Draw(t, "delay"); d > 0 {
		m.NotBefore = timestamppb.New(h.m.now.Add(d))
	}
	return m
}

// targetOf reads a target as people write it.
func targetOf(s string) *pb.Target {
	kind, name, _ := strings.Cut(s, ":")
	switch {
	case kind == "role":
		return &pb.Target{To: &pb.Target_Role{Role: name}}
	case kind == "channel":
		return &pb.Target{To: &pb.Target_Channel{Channel: name}}
	case s == "everyone":
		return &pb.Target{To: &pb.Target_Everyone{Everyone: true}}
	case strings.ContainsAny(s, "*?"):
		return &pb.Target{To: &pb.Target_Pattern{Pattern: s}}
	}
	return &pb.Target{To: &pb.Target_Agent{Agent: s}}
}

// parcel is the delivery of a message to one mailbox, as it begins.
func (h *history) parcel(m *pb.Message, r *pb.SendResult, box, sender string) *parcel {
	p := &parcel{
		message: r.Revision, id: r.Id, box: box, sender: sender, kind: cmp.Or(m.Type, "message"), priority: int(m.Priority), key: m.OrderingKey,
		sent: h.m.now, most: int(m.MaxAttempts),
	}
	if sender == "" {
		p.sender = "system"
	}
	if p.directive() {
		p.priority = 10
	}
	if p.most == 0 {
		p.most = 3
	}
	ttl := m.Ttl.AsDuration()
	if ttl == 0 && m.Target.GetChannel() == "urgent" {
		ttl = 5 * time.Minute
	}
	if ttl > 0 {
		p.expires = h.m.now.Add(ttl)
	}
	if m.NotBefore != nil {
		p.due = m.NotBefore.AsTime()
	}
	return p
}

func (h *history) claim(t *rapid.T) {
	w := wish{
		agent:    someAgents.Draw(t, "agent"),
		consumer: oneOf([]string{"", "", "second"}).Draw(t, "consumer"),
		kinds:    oneOf([][]string{nil, nil, {"message"}, {"work"}}).Draw(t, "types"),
		lowest:   oneOf([]int{0, 0, 0, 6}).Draw(t, "lowest priority"),
		most:     numbers(1, 4).Draw(t, "max"),
		lasts:    someClaims.Draw(t, "claim_for"),
	}
	var named []string
	if numbers(0, 3).Draw(t, "name a mailbox") == 0 {
		named = []string{someBoxes.Draw(t, "mailbox")}
	}
	if h.narrow {
		w, named = wish{agent: w.agent, most: w.most, lasts: w.lasts}, nil
	}
	request := &pb.ClaimMessagesRequest{
		Consumer: w.consumer, Mailboxes: named, Types: w.kinds, LowestPriority: int32(w.lowest), Max: int32(w.most),
	}
	if w.lasts > 0 {
		request.ClaimFor = durationpb.New(w.lasts)
	} else {
		w.lasts = 30 * time.Second
	}
	reason, code := h.stranger(w.agent), codes.FailedPrecondition
	if reason == "" {
		w.boxes = h.m.reachable(w.agent)
		if len(named) > 0 {
			if !slices.Contains(w.boxes, named[0]) {
				reason, code = "NOT_YOUR_MAILBOX", codes.PermissionDenied
			}
			w.boxes = named
		}
	}
	out, err := call(h, w.agent, pb.NewMessageServiceClient, pb.MessageServiceClient.ClaimMessages, request)
	if refuses(t, err, code, reason) {
		return
	}
	claims, resumed := h.m.claim(w)
	var got, want []string
	for i, c := range out.Claims {
		lasts := c.ExpiresIn.AsDuration()
		if h.batched && i < resumed && i < len(claims) {
			lasts = claims[i].until.Sub(h.m.now) // the new end of a claim is known after the commit
		}
		got = append(got, fmt.Sprintf("%s from %s, priority %d, attempt %d of %d, for %v, resumed %v",
			c.ClaimId, c.Mailbox, c.Message.Priority, c.Attempt, c.MaxAttempts, lasts, c.Resumed))
	}
	for i, p := range claims {
		want = append(want, fmt.Sprintf("%s from %s, priority %d, attempt %d of %d, for %v, resumed %v",
			p.claimID(), p.box, p.priority, p.attempts+1, p.most, p.until.Sub(h.m.now), i < resumed))
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Fatalf("claims (-model +broker):\n%s", diff)
	}
	if len(claims) == 0 {
		h.empty(t, w, out)
	}
}

// empty checks why there was nothing to claim.
func (h *history) empty(t *rapid.T, w wish, out *pb.ClaimMessagesResponse) {
	want, due := pb.EmptyReason_EMPTY_REASON_EMPTY, time.Time{}
	held := false
	for _, p := range h.m.parcels {
		if !slices.Contains(w.boxes, p.box) {
			continue
		}
		held = held || h.m.state(p) == blocked
		if h.m.state(p) == delayed && (due.IsZero() || p.due.Before(due)) {
			want, due = pb.EmptyReason_EMPTY_REASON_DELAYED, p.due
		}
	}
	if held {
		want = pb.EmptyReason_EMPTY_REASON_BLOCKED_BY_ORDER
	}
	if why, until, shut := h.m.shut(w.agent); shut {
		want, due = why, until
	}
	if out.EmptyReason != want || !timeOf(out.NextDue).Equal(due) {
		t.Fatalf("nothing to claim: the broker says %v until %v; the model %v until %v", out.EmptyReason, timeOf(out.NextDue), want, due)
	}
}

func (h *history) advance(t *rapid.T) {
	h.pass(t, oneOf([]time.Duration{time.Millisecond, time.Second, 7 * time.Second, 31 * time.Second}).Draw(t, "time"))
}

func (h *history) advanceFar(t *rapid.T) {
	h.pass(t, oneOf([]time.Duration{3 * time.Minute, 2 * time.Hour}).Draw(t, "time"))
}

// pass lets time pass, from one thing that happens by itself to the next: a longer step would look like a
// process that was suspended. What happens by itself takes its time, so it is waited for.
func (h *history) pass(t *rapid.T, d time.Duration) {
	for end := h.m.now.Add(d); h.m.now.Before(end); {
		next := h.m.next(end)
		h.Clock.Advance(next.Sub(h.m.now))
		h.m.advance(next)
		ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience/2)
		differs := func() error { return errors.Join(h.adopt(), h.differs(false)) }
		for err := differs(); err != nil; err = differs() {
			if ctx.Err() != nil {
				t.Fatalf("after %v: %v", d, err)
			}
		}
		cancel()
		h.rest(t)
	}
}

func (h *history) restart(t *rapid.T) {
	if numbers(0, 3).Draw(t, "really") > 0 {
		t.Skip("a restart takes its time")
	}
	h.closeStreams(t, func(*openStream) bool { return true })
	h.Restart()
	h.m.restart()
}
