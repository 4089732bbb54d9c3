package client

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// extending bounds a call that extends a hold or asks for it.
const extending = 10 * time.Second

// keep extends the hold at half of its time, until it ends. since is the beginning of its time.
func (h *Hold) keep(since time.Time) {
	next := since.Add(h.lasts / 2)
	for {
		last := since.Add(h.lasts - h.Margin())
		if next.After(last) {
			next = last
		}
		t := time.NewTimer(time.Until(next))
		select {
		case <-t.C:
		case <-h.ctx.Done():
			t.Stop()
			return
		case <-h.gone:
			t.Stop()
			return
		}
		if !time.Now().Before(last) {
			h.lost("the broker is away, and did not extend it in time", nil)
			return
		}
		began := time.Now()
		call, cancel := context.WithTimeout(h.ctx, min(extending, time.Until(last)))
		err := h.terms.extend(call, h.fence)
		cancel()
		switch {
		case err == nil:
			since, next = began, began.Add(h.lasts/2)
		case endsHold(err):
			h.refused(err)
			return
		default: // the broker is away, or refuses for now: the grant still counts
			next = time.Now().Add(min(time.Second, h.lasts/20))
		}
	}
}

// refused ends the hold, unless the log shows within a moment that the agent itself has given it away.
func (h *Hold) refused(err error) {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-h.gone:
	case <-h.ctx.Done():
	case <-t.C:
		h.lost(status.Convert(err).Message(), err)
	}
}

func (h *Hold) lost(why string, err error) {
	h.lose(&HoldLostError{What: h.terms.what, Why: why, Err: err})
}

// endsHold reports whether the broker's answer says that the hold has ended.
func endsHold(err error) bool {
	switch Reason(err) {
	case "LOCK_LOST", "TOKEN_LOST", "FENCE_LOST", "STALE_INCARNATION", "AGENT_NOT_REGISTERED":
		return true
	}
	return status.Code(err) == codes.NotFound
}

// watch follows the log from the grant on: it knows at once what ends the hold. What the agent itself gives away, such as
// a token that it passes on, is not lost.
func (h *Hold) watch() {
	types := append(slices.Clone(h.terms.types), "agent.failed", "agent.stopped", "agent.deregistered")
	filter := &pb.EventFilter{Types: types}
	for e, err := range h.client.FollowEvents(h.ctx, EventOptions{After: h.fence, Filter: filter}) {
		if err != nil {
			if h.o.OnError != nil && h.ctx.Err() == nil {
				h.o.OnError(err)
			}
			return
		}
		if !h.concerns(e) {
			continue
		}
		call, cancel := context.WithTimeout(h.ctx, extending)
		held, err := h.terms.held(call, h.fence)
		cancel()
		switch {
		case err != nil || held: // the next extension shows what cannot be known now
		case givenAway(e):
			close(h.gone)
			return
		default:
			h.lost(e.GetSummary(), nil)
			return
		}
	}
}

// givenAway reports whether an event says that the owner itself has ended its hold: there is no other cause.
func givenAway(e *pb.Event) bool {
	var details struct {
		Cause string `json:"cause"`
	}
	return slices.Contains([]string{"lock.released", "token.released", "token.passed"}, e.GetType()) &&
		json.Unmarshal([]byte(e.GetDetails()), &details) == nil && details.Cause == ""
}

// concerns reports whether an event names the grant or its owner.
func (h *Hold) concerns(e *pb.Event) bool {
	if agent := h.client.identity.Agent; e.GetCategory() == pb.EventCategory_EVENT_CATEGORY_AGENT {
		return e.GetSource() == agent || slices.Contains(e.GetRelated(), agent)
	}
	var details any
	if json.Unmarshal([]byte(e.GetDetails()), &details) != nil {
		return true
	}
	return slices.Contains(e.GetRelated(), strconv.FormatInt(h.fence, 10)) || mentions(details, float64(h.fence))
}

// mentions reports whether a number is anywhere in decoded JSON.
func mentions(v any, n float64) bool {
	switch v := v.(type) {
	case float64:
		return v == n
	case []any:
		return slices.ContainsFunc(v, func(v any) bool { return mentions(v, n) })
	case map[string]any:
		for _, v := range v {
			if mentions(v, n) {
				return true
			}
		}
	}
	return false
}
