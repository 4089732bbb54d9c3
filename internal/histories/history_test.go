package histories_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

type model = porcupine.Model

// A history is what some clients have asked one session and what they were answered.
type history struct {
	daemon  *daemon
	session string
	mortal  bool // its daemon is killed all the time
	s       *statistics
	start   time.Time
	maybes  atomic.Int32 // calls whose outcome is unknown, or may become so

	mu         sync.Mutex // guards what follows
	operations []porcupine.Operation
	doubtful   []porcupine.Operation // that only the lenient model takes for possible
}

func newHistory(d *daemon, session string, s *statistics, mortal bool) *history {
	return &history{daemon: d, session: session, mortal: mortal, s: s, start: time.Now()}
}

// make has the clients make all their calls.
func (h *history) make(ctx context.Context, k kind, seed int64) error {
	system := &client{history: h}
	if err := system.open(ctx); err != nil {
		return fmt.Errorf("make the session: %w", err)
	}
	failed := make(chan error, clients)
	for n := range clients {
		go func() {
			c := &client{history: h, number: n, agent: agentName(n), random: rand.New(rand.NewPCG(uint64(seed), uint64(n)))}
			c.ctx = metadata.AppendToOutgoingContext(ctx, "brokerd-session", h.session, "brokerd-agent", c.agent)
			failed <- c.live(k)
		}()
	}
	var all error
	for range clients {
		all = errors.Join(all, <-failed)
	}
	if all != nil || k.finish == nil {
		return all
	}
	return k.finish(ctx, h)
}

// decide searches an order.
func (h *history) decide(k kind) error {
	began := time.Now()
	result := porcupine.CheckOperationsTimeout(k.model, h.operations, decision)
	if result == porcupine.Illegal && h.mortal {
		result = porcupine.CheckOperationsTimeout(k.lenient, slices.Concat(h.operations, h.doubtful), decision)
		h.s.lenient.Add(1)
	}
	h.s.decided(time.Since(began))
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		return errors.New("there is no order in which it is allowed")
	default:
		return errUndecided
	}
}

// errUndecided is the error of a history whose decision takes longer than decision.
var errUndecided = fmt.Errorf("it was not decided within %v", decision)

// write keeps a history that is wrong, as text and as a page to look at, and says where.
func (h *history) write(m model) string {
	dir, err := os.MkdirTemp("", "history-"+h.session+"-")
	if err != nil {
		return err.Error()
	}
	ordered := slices.Clone(h.operations)
	slices.SortStableFunc(ordered, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var text strings.Builder
	for _, o := range ordered {
		until := time.Duration(o.Return).String()
		if o.Return == math.MaxInt64 {
			until = "?"
		}
		fmt.Fprintf(&text, "%-14v %-14s %s: %s\n", time.Duration(o.Call), until, agentName(o.ClientId), m.DescribeOperation(o.Input, o.Output))
	}
	result, info := porcupine.CheckOperationsVerbose(m, h.operations, decision)
	fmt.Fprintf(&text, "\n%s. The longest orders that are allowed end like this:\n", result)
	for _, orders := range info.PartialLinearizationsOperations() {
		slices.SortFunc(orders, func(a, b []porcupine.Operation) int { return len(b) - len(a) })
		for _, longest := range orders[:min(3, len(orders))] {
			state := m.Init()
			for i, o := range longest {
				_, state = m.Step(state, o.Input, o.Output)
				if i >= len(longest)-8 {
					fmt.Fprintf(&text, "%s: %s\n", agentName(o.ClientId), m.DescribeOperation(o.Input, o.Output))
				}
			}
			fmt.Fprintf(&text, "and then there is %s, and none of these can be next:\n", m.DescribeState(state))
			for _, o := range next(h.operations, longest) {
				ok, _ := m.Step(state, o.Input, o.Output)
				fmt.Fprintf(&text, "%s: %s (%t)\n", agentName(o.ClientId), m.DescribeOperation(o.Input, o.Output), ok)
			}
			text.WriteString("\n")
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "history.txt"), []byte(text.String()), 0o600); err != nil {
		return err.Error()
	}
	if err := porcupine.VisualizePath(m, info, filepath.Join(dir, "history.html")); err != nil {
		return err.Error()
	}
	return "it is in " + dir
}

// next returns the operations that may come after some.
func next(all, done []porcupine.Operation) []porcupine.Operation {
	rest := slices.DeleteFunc(slices.Clone(all), func(o porcupine.Operation) bool {
		return slices.ContainsFunc(done, func(d porcupine.Operation) bool {
			return o.ClientId == d.ClientId && o.Call == d.Call && o.Return == d.Return && reflect.DeepEqual(o.Input, d.Input)
		})
	})
	until := int64(math.MaxInt64)
	for _, o := range rest {
		until = min(until, o.Return)
	}
	return slices.DeleteFunc(rest, func(o porcupine.Operation) bool { return o.Call > until })
}

// A client is one of those who call: an agent that does one thing after the other.
type client struct {
	*history
	number int
	agent  string
	random *rand.Rand
	ctx    context.Context // of all its calls: it names the session and the agent
	cuts   int             // how many of its calls were cut off
}

func agentName(n int) string { return fmt.Sprintf("client-%d", n) }

// open makes the session, without quotas, and registers the clients.
func (c *client) open(ctx context.Context) error {
	_, err := pb.NewSessionServiceClient(c.daemon.conn).CreateSession(ctx, &pb.CreateSessionRequest{Name: c.session, RequestId: newID(),
		Settings: &pb.SessionSettings{MailboxLimit: proto.Int64(0), SendRate: proto.Float64(0)}})
	for cut(err) && ctx.Err() == nil {
		_, err = pb.NewSessionServiceClient(c.daemon.conn).CreateSession(ctx, &pb.CreateSessionRequest{Name: c.session,
			Settings: &pb.SessionSettings{MailboxLimit: proto.Int64(0), SendRate: proto.Float64(0)}})
	}
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return err
	}
	for n := range clients {
		agent := metadata.AppendToOutgoingContext(ctx, "brokerd-session", c.session, "brokerd-agent", agentName(n))
		_, err := pb.NewAgentServiceClient(c.daemon.conn).RegisterAgent(agent, &pb.RegisterAgentRequest{Role: "client", Lease: durationpb.New(time.Hour)})
		for cut(err) && ctx.Err() == nil {
			_, err = pb.NewAgentServiceClient(c.daemon.conn).RegisterAgent(agent, &pb.RegisterAgentRequest{Role: "client", Lease: durationpb.New(time.Hour)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// live makes the calls.
func (c *client) live(k kind) error {
	next := k.prepare(c)
	for range calls {
		if err := next(); err != nil {
			return fmt.Errorf("%s: %w", c.agent, err)
		}
		c.s.calls.Add(1)
		if c.random.IntN(3) == 0 {
			pause(c.ctx, time.Duration(c.random.IntN(2000))*time.Microsecond)
		}
	}
	return nil
}

// requestID returns the id of a change that cannot be made again without one, so that it can. It is empty for some that
// may stay unknown; known must be called once such a change is answered.
func (c *client) requestID() string {
	if !c.mortal || c.random.IntN(2) > 0 {
		return newID()
	}
	if c.maybes.Add(1) > maybes {
		c.maybes.Add(-1)
		return newID()
	}
	return ""
}

// call makes a call until it is answered; one that is not to be made again, only once. It returns the times between which it
// happened, and false if nobody knows whether it did. An error is an answer.
func (c *client) call(again bool, f func(ctx context.Context) error) (from, to int64, known bool, err error) {
	from = c.now()
	for {
		err = f(c.ctx)
		switch {
		case !cut(err):
			return from, c.now(), true, err
		case c.ctx.Err() != nil:
			return from, math.MaxInt64, false, c.ctx.Err()
		}
		c.cuts++
		c.s.cut.Add(1)
		if !again {
			c.s.unknown.Add(1)
			return from, math.MaxInt64, false, nil
		}
	}
}

// change makes a call that changes something, with a request id or without. An error is an answer.
func (c *client) change(f func(ctx context.Context, id string) error) (from, to int64, known bool, err error) {
	id := c.requestID()
	from, to, known, err = c.call(id != "", func(ctx context.Context) error { return f(ctx, id) })
	if id == "" && known {
		c.maybes.Add(-1)
	}
	return from, to, known, err
}

// add records a call; an output that is nil is unknown.
func (c *client) add(from, to int64, input, output any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.operations = append(c.operations, porcupine.Operation{ClientId: c.number, Call: from, Return: to, Input: input, Output: output})
}

// addDoubtful records a call that has perhaps been made as well, and left nothing that shows it.
func (c *client) addDoubtful(from, to int64, input any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubtful = append(c.doubtful, porcupine.Operation{ClientId: c.number, Call: from, Return: to, Input: input})
}

func (h *history) now() int64 { return time.Since(h.start).Nanoseconds() }

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// cut reports whether a call ended because the daemon was killed.
func cut(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}

// reason is that of an error of the broker, with what it says about it.
func reason(err error) (string, map[string]string) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason(), info.GetMetadata()
		}
	}
	return "", nil
}
