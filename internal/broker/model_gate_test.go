package broker_test

import (
	"fmt"
	"math"
	"slices"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// A barrier is what the model knows to stand between an agent and its work.
type barrier struct {
	halted   bool
	failures int
	until    time.Time // zero = the breaker is closed
	probe    *parcel
}

// barrier returns that of an agent.
func (m *model) barrier(agent string) *barrier {
	b := m.barriers[agent]
	if b == nil {
		b = &barrier{}
		m.barriers[agent] = b
	}
	return b
}

func (p *parcel) directive() bool {
	return slices.Contains([]string{"nudge", "halt", "resume", "terminate", "shutdown_request"}, p.kind)
}

// directRank is the rank of a directive.
func (p *parcel) directRank() int64 { return math.MinInt64 + p.sent.UnixNano() }

// shut reports whether the agent gets directives only, and why.
func (m *model) shut(agent string) (why pb.EmptyReason, until time.Time, shut bool) {
	b := m.barrier(agent)
	switch {
	case b.halted:
		return pb.EmptyReason_EMPTY_REASON_HALTED, time.Time{}, true
	case b.probe != nil:
		return pb.EmptyReason_EMPTY_REASON_BREAKER_OPEN, time.Time{}, true
	case b.until.After(m.now):
		return pb.EmptyReason_EMPTY_REASON_BREAKER_OPEN, b.until, true
	}
	return 0, time.Time{}, false
}

// passing returns what of the ready deliveries an agent may be given, and which is the probe.
func (m *model) passing(agent string, ready []*parcel) (passing []*parcel, probe *parcel) {
	b := m.barrier(agent)
	_, _, shut := m.shut(agent)
	for _, p := range ready {
		switch {
		case p.directive():
		case shut || probe != nil:
			continue
		case !b.until.IsZero():
			probe = p
		}
		passing = append(passing, p)
	}
	return passing, probe
}

// strike counts a failed claim.
func (m *model) strike(p *parcel) {
	b := m.barrier(p.holder)
	if m.breaker == 0 || !b.until.IsZero() && b.probe != p {
		return
	}
	b.failures++
	if b.failures >= m.breaker || b.probe == p {
		b.until, b.probe = m.now.Add(breakerTime), nil
	}
}

// succeeded takes note of a claim that was finished.
func (m *model) succeeded(p *parcel) {
	if b := m.barrier(p.holder); b.until.IsZero() || b.probe == p {
		m.mend(p.holder)
	}
}

// mend closes an agent's breaker.
func (m *model) mend(agent string) {
	b := m.barrier(agent)
	b.failures, b.until, b.probe = 0, time.Time{}, nil
}

// released lets another probe through.
func (m *model) released(p *parcel) {
	if b := m.barrier(p.holder); b.probe == p {
		b.probe = nil
	}
}

// mayDirect reports whether a caller may send directives.
func (m *model) mayDirect(sender string) bool { return sender == "" || m.agents[sender].role == "red" }

// direct applies a directive. A resume settles the earlier halts.
func (m *model) direct(kind string, boxes []string, message int64) {
	for _, agent := range boxes {
		switch kind {
		case "halt":
			m.barrier(agent).halted = true
		case "resume":
			m.barrier(agent).halted = false
			for _, p := range m.where(func(p *parcel) bool { return p.box == agent && p.kind == "halt" && p.message < message }) {
				switch {
				case p.claimed():
					_, _ = m.ack(p.holder, naming{message: p.message})
				case p.state == atRest:
					m.finish(p, cancelled)
				}
			}
		}
	}
}

// barriersDiffer compares what the registry shows.
func (h *history) barriersDiffer() error {
	out, err := call(h, "", pb.NewAgentServiceClient, pb.AgentServiceClient.ListAgents, &pb.ListAgentsRequest{})
	if err != nil {
		return err
	}
	for _, a := range out.Agents {
		b := h.m.barrier(a.Name)
		if a.Halted != b.halted || a.Degraded == b.until.IsZero() {
			return fmt.Errorf("the broker says halted %v, degraded %v; the model %+v", a.Halted, a.Degraded, b)
		}
	}
	return nil
}
