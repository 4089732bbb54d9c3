package histories_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

// recordEnds adds to a history which tickets and holds the broker has ended by itself. On a slow machine a client can
// make no call for longer than the broker keeps them for it. Its event log says when that was, by its revisions.
func recordEnds(ctx context.Context, h *history, m *menu) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "brokerd-session", h.session, "brokerd-agent", agentName(0))
	request := &pb.ListEventsRequest{PageSize: 1000, Filter: &pb.EventFilter{
		Types: []string{"lock.lapsed", "lock.expired", "token.lapsed", "token.expired"}}}
	for {
		var page *pb.ListEventsResponse
		_, to, _, err := (&client{history: h, ctx: ctx}).call(true, func(ctx context.Context) (err error) {
			page, err = pb.NewEventServiceClient(h.daemon.conn).ListEvents(ctx, request)
			return err
		})
		if err != nil {
			return fmt.Errorf("list events: %w", err)
		}
		for _, e := range page.GetEvents() {
			end, err := m.endOf(e)
			if err != nil {
				return err
			}
			if err := h.recordEnd(end, e, to); err != nil {
				return err
			}
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return nil
		}
	}
}

// soonest is the shortest time after which the broker ends what its owner does not ask for, less the length of a batch.
const soonest = 9 * time.Second

// recordEnd adds an end that an event reports. The end was committed before any answer that names a later revision, and
// before the time until. It is an error if its owner had asked for the same shortly before.
func (h *history) recordEnd(end turnCall, e *pb.Event, until int64) error {
	at := e.GetTime().AsTime().Sub(h.start.Round(0)) // without the monotonic clock
	for _, o := range h.operations {
		a, known := o.Output.(turnAnswer)
		if known && a.number > e.GetRevision() {
			until = min(until, o.Return)
		}
		// The fence that its client got to know may be that of another hold, of a request that it made again.
		c := o.Input.(turnCall)
		own := c.owner == end.owner && c.ask == end.ask
		if own && c.verb == request && o.Return <= at.Nanoseconds() && o.Call > (at-soonest).Nanoseconds() {
			return fmt.Errorf("%s: %s: its owner had asked for it %v before",
				e.GetType(), e.GetDetails(), at-time.Duration(o.Return))
		}
		if end.verb == expire && known && a.fate != nil && own && a.fate.fence > end.fence {
			a.fate.fence = 0
		}
	}
	from := min((at - time.Second).Nanoseconds(), until) // the two clocks need not agree
	h.operations = append(h.operations, porcupine.Operation{ClientId: clients, Call: from, Return: until,
		Input: end, Output: turnAnswer{number: e.GetRevision()}})
	return nil
}

// endOf returns what an event says that the broker has ended.
func (m *menu) endOf(e *pb.Event) (turnCall, error) {
	var d struct {
		Agent, Token, Mode string
		Paths              []string
		Ticket, Fence      int64
	}
	if err := json.Unmarshal([]byte(e.GetDetails()), &d); err != nil {
		return turnCall{}, fmt.Errorf("details of %s: %w", e.GetType(), err)
	}
	c := turnCall{verb: lapse, owner: ownerOf(d.Agent), ask: -1, fence: d.Ticket}
	if strings.HasSuffix(e.GetType(), ".expired") {
		c.verb, c.fence = expire, d.Fence
	}
	if d.Token == "" {
		c.ask = m.find(d.Paths, pb.LockMode(pb.LockMode_value["LOCK_MODE_"+strings.ToUpper(d.Mode)]))
	}
	for i, a := range m.asks {
		if a.token != "" && d.Token == "turn/"+a.token {
			c.ask = i
		}
	}
	if c.ask < 0 || c.fence == 0 {
		return c, fmt.Errorf("%s: %s: it is of nothing that the clients ask for", e.GetType(), e.GetDetails())
	}
	return c, nil
}

// What the broker ends right after its owner has asked for it is an error of the broker.
func TestRecordEnd_RefusesAnEarlyEnd(t *testing.T) {
	t.Parallel()
	h := &history{start: time.Now()}
	h.operations = []porcupine.Operation{{ClientId: 1, Call: 0, Return: 1, Input: turnCall{verb: request, owner: 1},
		Output: turnAnswer{fate: &fate{ticket: 6}}}}
	end := turnCall{verb: lapse, owner: 1, fence: 6}
	for after, allowed := range map[time.Duration]bool{time.Second: false, 11 * time.Second: true} {
		e := &pb.Event{Type: "token.lapsed", Revision: 7, Time: timestamppb.New(h.start.Add(after))}
		if err := h.recordEnd(end, e, int64(time.Minute)); (err == nil) != allowed {
			t.Errorf("an end after %v: %v", after, err)
		}
	}
}

// A ticket that the broker has ended is not granted later; without its end, the same calls are in no order.
func TestTurns_AreInOrderWithWhatTheBrokerEnds(t *testing.T) {
	t.Parallel()
	m := oneToken()
	var all []porcupine.Operation
	call := func(c turnCall, a turnAnswer) {
		n := int64(len(all))
		all = append(all, porcupine.Operation{ClientId: c.owner, Call: 2 * n, Return: 2*n + 1, Input: c, Output: a})
	}
	call(turnCall{verb: take, owner: 0}, turnAnswer{number: 5})
	call(turnCall{verb: request, owner: 1}, turnAnswer{fate: &fate{ticket: 6}})
	call(turnCall{verb: queued, owner: 1}, turnAnswer{number: 6})
	ended := len(all)
	call(turnCall{verb: lapse, owner: 1, fence: 6}, turnAnswer{number: 7})
	call(turnCall{verb: release, owner: 0}, turnAnswer{done: true, number: 8})
	call(turnCall{verb: look, owner: 2}, turnAnswer{number: 8})
	call(turnCall{verb: take, owner: 2}, turnAnswer{number: 9})
	call(turnCall{verb: expire, owner: 2, fence: 9}, turnAnswer{number: 10})
	call(turnCall{verb: look, owner: 0}, turnAnswer{number: 10})
	if !porcupine.CheckOperations(turnsModel(m, false), all) {
		t.Error("there is no order")
	}
	for i, what := range map[int]string{ended: "the end of the ticket", len(all) - 2: "the end of the hold"} {
		rest := slices.Concat(all[:i], all[i+1:])
		if porcupine.CheckOperations(turnsModel(m, false), rest) {
			t.Errorf("there is an order without %s", what)
		}
	}
}
