package locks_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/locks"
	"brokerd/internal/model"
)

// TestQueue_AgreesWithTheModel asks for and releases whatever comes to mind, and compares who holds what and who waits behind how many with
// a model that knows nothing of indexes, caches or what may have changed.
func TestQueue_AgreesWithTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := newDaemon(rt)
		c := &comparison{rt: rt, w: w, o: w.operator(), agents: map[string]*agent{}, model: newModel()}
		for _, name := range names {
			c.agents[name] = w.agent(name)
		}
		c.pool = rapid.SliceOfNDistinct(rapid.SampledFrom(pool), 3, 5, rapid.ID).Draw(rt, "pool")
		rt.Repeat(map[string]func(*rapid.T){
			"acquire": c.acquire,
			"again":   c.acquire,
			"more":    c.acquire,
			"release": c.release,
			"give up": c.giveUp,
			"some":    c.releaseSome,
			"end":     c.end,
			"":        c.compare,
		})
	})
}

type comparison struct {
	rt     *rapid.T
	w      *daemon
	o      *agent
	agents map[string]*agent
	pool   []string
	model  model.Queue[*request]
	read   int // events that were read
}

var names = []string{"a", "b", "c"}

var pool = []string{"a", "b", "d/", "d/a", "d/e/", "d/e/a", "*", "d/*", "**/a", "d/e/*"}

func (c *comparison) request() *request {
	r := &request{
		owner: owner{
			rapid.SampledFrom(names).Draw(c.rt, "agent"),
			rapid.SampledFrom([]string{"", "", "", "h"}).Draw(c.rt, "holder"),
		},
		shared: rapid.IntRange(0, 3).Draw(c.rt, "shared") == 0,
		names:  rapid.SliceOfNDistinct(rapid.SampledFrom(c.pool), 1, 2, rapid.ID).Draw(c.rt, "paths"),
	}
	slices.Sort(r.names)
	for _, name := range r.names {
		p, err := locks.Parse(name, false)
		apptest.NoError(c.rt, err)
		r.paths = append(r.paths, p)
	}
	return r
}

func (c *comparison) acquire(*rapid.T) {
	r := c.request()
	keep := rapid.IntRange(0, 3).Draw(c.rt, "keep") > 0
	mode := pb.LockMode_LOCK_MODE_EXCLUSIVE
	if r.shared {
		mode = pb.LockMode_LOCK_MODE_SHARED
	}
	a := c.agents[r.owner.agent]
	out, err := a.AcquireLocks(a.Ctx, &pb.AcquireLocksRequest{Paths: r.names, Mode: mode, Holder: r.owner.holder, KeepTicket: keep})
	if status.Code(err) == codes.Aborted {
		if c.closes(r) {
			c.read++
			return
		}
		// No circle yet, but that r waits lets another pass, which may close one.
		for _, e := range c.w.Root().Events("lock.deadlock")[c.read:] { // its ticket is the newest of those that have ended
			r.number = max(r.number, ticketOf(e))
		}
		c.model.Waiting = append(c.model.Waiting, r)
		c.settle()
		if slices.Contains(c.model.Waiting, r) {
			c.rt.Fatalf("%v: %v, and there is no circle", r, err)
		}
		return
	}
	apptest.NoError(c.rt, err)
	m := &c.model
	if i := slices.IndexFunc(m.Held, func(h *request) bool { return h.owner == r.owner && h.covers(r) }); i >= 0 {
		want(c.rt, "held already", out.Outcome, granted)
		if !slices.ContainsFunc(m.Held, func(h *request) bool {
			return h.number == out.Fence && h.owner == r.owner && h.covers(r)
		}) {
			c.rt.Errorf("fence %d is not one of %v that covers %v", out.Fence, m.Held, r.names)
		}
		return
	}
	if i := slices.IndexFunc(m.Waiting, func(t *request) bool { return t.same(r) }); i >= 0 {
		want(c.rt, "waits already", out.Outcome, queued)
		want(c.rt, "ticket", out.Ticket, m.Waiting[i].number)
		return
	}
	position := c.position(r, len(m.Waiting))
	switch {
	case position == 0:
		want(c.rt, "free", out.Outcome, granted)
		r.number = out.Fence
		m.Held = append(m.Held, r)
	case !keep:
		want(c.rt, "taken", out.Outcome, busy)
		want(c.rt, "position", int(out.Position), position)
		return
	default:
		if c.closes(r) {
			c.rt.Errorf("%v waits in a circle: %v", r, out)
		}
		want(c.rt, "taken", out.Outcome, queued)
		want(c.rt, "position", int(out.Position), position)
		r.number = out.Ticket
		m.Waiting = append(m.Waiting, r)
	}
	c.settle()
}

// settle does what follows from a change. The daemon says which circles it has broken.
func (c *comparison) settle() {
	m := &c.model
	aborted := c.w.Root().Events("lock.deadlock")[c.read:]
	for {
		if c.tangled() {
			if len(aborted) == 0 {
				c.rt.Fatalf("a circle stays: %v", m)
			}
			number := aborted[0]
			i := slices.IndexFunc(m.Waiting, func(t *request) bool { return t.number == ticketOf(number) })
			if i < 0 || !slices.Contains(m.Cycles(m.Waiting[i].owner.number()), i) {
				c.rt.Fatalf("%v is not the youngest of a circle", number)
			}
			c.leave(m.Waiting[i])
			aborted = aborted[1:]
			c.read++
			continue
		}
		i := m.Next()
		if i < 0 {
			break
		}
		t := m.Waiting[i]
		c.leave(t)
		t.number = c.fenceOf(t.number)
		m.Held = append(m.Held, t)
	}
	if len(aborted) > 0 {
		c.rt.Errorf("there was no circle: %v", aborted)
	}
	slices.SortFunc(m.Held, func(a, b *request) int { return int(a.number - b.number) })
}

// ticketOf is the ticket that an event of a deadlock is about: the youngest in its circle.
func ticketOf(e *pb.Event) (youngest int64) {
	var details struct {
		Circle []struct {
			Ticket int64 `json:"ticket"`
		} `json:"circle"`
	}
	_ = json.Unmarshal([]byte(e.Details), &details)
	for _, step := range details.Circle {
		youngest = max(youngest, step.Ticket)
	}
	return youngest
}

// fenceOf is what has become of a ticket.
func (c *comparison) fenceOf(ticket int64) int64 {
	for _, e := range slices.Backward(c.w.Root().Events("lock.granted")) {
		if strings.Contains(e.Details, fmt.Sprintf(`"ticket":%d}`, ticket)) || strings.Contains(e.Details, fmt.Sprintf(`"ticket":%d,`, ticket)) {
			return e.Revision
		}
	}
	c.rt.Fatalf("ticket %d was not granted: %v", ticket, c.model)
	return 0
}

// pick chooses one of several, and skips the step if there is none.
func (c *comparison) pick(t *rapid.T, list []*request) *request {
	if len(list) == 0 {
		t.Skip("nothing there")
	}
	return list[rapid.IntRange(0, len(list)-1).Draw(c.rt, "which")]
}

func (c *comparison) release(t *rapid.T) {
	r := c.pick(t, c.model.Held)
	a := c.agents[r.owner.agent]
	want(c.rt, "released", int(a.release(r.number).Released), len(r.names))
	c.drop(r)
	c.settle()
}

func (c *comparison) drop(r *request) {
	c.model.Held = slices.DeleteFunc(slices.Clone(c.model.Held), func(h *request) bool { return h == r })
}

func (c *comparison) giveUp(t *rapid.T) {
	r := c.pick(t, c.model.Waiting)
	a := c.agents[r.owner.agent]
	apptest.Must(c.rt, a.ReleaseLocks, &pb.ReleaseLocksRequest{Tickets: []int64{r.number}})
	c.leave(r)
	c.settle()
}

// releaseSome takes one path out of whatever an owner has.
func (c *comparison) releaseSome(*rapid.T) {
	who := c.request()
	name := who.names[0]
	a := c.agents[who.owner.agent]
	apptest.Must(c.rt, a.ReleaseLocks, &pb.ReleaseLocksRequest{Paths: []string{name}, Holder: who.owner.holder})
	for _, r := range slices.Concat(c.model.Held, c.model.Waiting) {
		i := slices.Index(r.names, name)
		if r.owner != who.owner || i < 0 {
			continue
		}
		r.names = slices.Delete(slices.Clone(r.names), i, i+1)
		r.paths = slices.Delete(slices.Clone(r.paths), i, i+1)
		if len(r.names) == 0 {
			c.drop(r)
			c.leave(r)
		}
	}
	c.settle()
}

// end deregisters an agent, which takes all from it, and registers it again.
func (c *comparison) end(t *rapid.T) {
	if rapid.IntRange(0, 4).Draw(c.rt, "rarely") > 0 {
		t.Skip("not now")
	}
	name := rapid.SampledFrom(names).Draw(c.rt, "agent")
	a := c.agents[name]
	apptest.Must(c.rt, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
	apptest.Must(c.rt, a.RegisterAgent, &pb.RegisterAgentRequest{})
	theirs := func(r *request) bool { return r.owner.agent == name }
	c.model.Held = slices.DeleteFunc(slices.Clone(c.model.Held), theirs)
	c.model.Waiting = slices.DeleteFunc(slices.Clone(c.model.Waiting), theirs)
	c.settle()
}

func (c *comparison) compare(*rapid.T) {
	list := c.o.list(&pb.ListLocksRequest{PageSize: 1000})
	var got, wanted []string
	for _, l := range list.Locks {
		got = append(got, fmt.Sprint("held ", l.Fence, l.Agent, l.Holder, l.Paths, l.Mode == pb.LockMode_LOCK_MODE_SHARED))
	}
	for _, k := range list.Tickets {
		got = append(got, fmt.Sprint("waits ", k.Ticket, k.Agent, k.Holder, k.Paths, k.Mode == pb.LockMode_LOCK_MODE_SHARED, k.Position))
	}
	for _, h := range c.model.Held {
		wanted = append(wanted, fmt.Sprint("held ", h.number, h.owner.agent, h.owner.holder, h.names, h.shared))
	}
	for i, k := range c.model.Waiting {
		wanted = append(wanted,
			fmt.Sprint("waits ", k.number, k.owner.agent, k.owner.holder, k.names, k.shared, c.position(k, i)))
	}
	if !slices.Equal(got, wanted) {
		c.rt.Fatalf("the daemon has\n%s\nand the model\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}
