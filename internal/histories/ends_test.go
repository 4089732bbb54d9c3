package histories_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc/metadata"

	pb "brokerd/gen/brokerd/v1"
)

// recordEnds adds to a history which tickets and holds the broker has ended by itself. On a slow machine a client can be
// silent for longer than the broker keeps them for it. Its event log tells when that was, by its revisions.
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
			h.recordEnd(end, e, to)
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return nil
		}
	}
}

// recordEnd adds an end that an event tells of. It was made before an answer that names a later revision, at the latest
// before the time until.
func (h *history) recordEnd(end turnCall, e *pb.Event, until int64) {
	for _, o := range h.operations {
		a, known := o.Output.(turnAnswer)
		if known && a.number > e.GetRevision() {
			until = min(until, o.Return)
		}
		// The fence that its client got to know may be that of another hold, of a request that it made again.
		c := o.Input.(turnCall)
		if end.verb == expire && known && a.fate != nil && c.owner == end.owner && c.ask == end.ask && a.fate.fence > end.fence {
			a.fate.fence = 0
		}
	}
	from := e.GetTime().AsTime().Sub(h.start.Round(0)) // without the monotonic clock
	h.operations = append(h.operations, porcupine.Operation{ClientId: clients, Call: from.Nanoseconds(), Return: until,
		Input: end, Output: turnAnswer{number: e.GetRevision()}})
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
		rest := append(all[:i:i], all[i+1:]...)
		if porcupine.CheckOperations(turnsModel(m, false), rest) {
			t.Errorf("there is an order without %s", what)
		}
	}
}
