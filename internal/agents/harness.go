package agents

import (
	"fmt"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// A HarnessState is what a session of a coding agent does. The numbers are those of the API.
type HarnessState int

// What a session may do.
const (
	HarnessBusy  HarnessState = 1 + iota // a turn runs
	HarnessIdle                          // it waits for its user, or for mail if it listens
	HarnessEnded                         // it has ended, or its agent has stopped or failed
)

// String returns the name of the state, as events spell it.
func (s HarnessState) String() string {
	return [...]string{"unknown", "busy", "idle", "ended"}[s]
}

// A Harness is the session of a coding agent, as its hooks have reported it; the zero Harness if none has.
type Harness struct {
	Session   string // as the coding agent names it
	Program   string // such as claude-code
	State     HarnessState
	Tool      string // that it called last, while it is busy; empty = none in this turn
	Listening string // the way in which mail wakes it while it is idle; empty = none
	Since     time.Time
}

// after returns what is known of the session after another report, which has no time. A report with a state
// keeps the way in which the session listens; one without a state says just that.
func (h Harness) after(report Harness, now time.Time) Harness {
	same := h.Session == report.Session
	if !same && (report.State == HarnessEnded || report.State == 0 && report.Listening == "") || h == (Harness{}) && report.State == HarnessEnded {
		return h
	}
	switch {
	case report.State == 0 && same:
		h.Listening = report.Listening
		return h
	case report.State != 0 && report.State != HarnessEnded && same:
		report.Listening = h.Listening
	case report.State != 0:
		report.Listening = ""
	}
	if report.State != HarnessBusy {
		report.Tool = ""
	}
	if report.Since = h.Since; report.State != h.State || !same {
		report.Since = now
	}
	return report
}

// awake reports whether mail reaches the model soon: in the turn that runs, or because it wakes the session.
func (h Harness) awake() bool {
	return h.State == HarnessBusy || h.State == HarnessIdle && h.Listening != ""
}

// Doing says in a few words what the session does; empty if that is not known.
func (h Harness) Doing() string {
	switch {
	case h.State == HarnessBusy && h.Tool != "":
		return "in a turn (" + h.Tool + ")"
	case h.State == HarnessBusy:
		return "in a turn"
	case h.State == HarnessIdle && h.Listening != "":
		return "mail wakes it (" + h.Listening + ")"
	case h.State == HarnessIdle:
		return "mail waits for its next turn"
	case h.State == HarnessEnded:
		return "no session"
	}
	return ""
}

// explained says it for explain.
func (h Harness) explained(since string) string {
	text := "the session of its coding agent"
	if h.Program != "" {
		text = "its session of " + h.Program
	}
	switch h.State {
	case HarnessBusy:
		text += " has been in a turn since " + since
		if h.Tool != "" {
			text += " (" + finding.Clip(h.Tool) + ")"
		}
		return text + ": mail reaches its model after a tool, or at the end of the turn"
	case HarnessIdle:
		if h.Listening != "" {
			return text + " has been idle since " + since + " and listens: mail wakes it (" + h.Listening + ")"
		}
		return text + " has been idle since " + since + ": nothing wakes it, so mail waits for its next turn"
	default:
		return text + " ended at " + since
	}
}

// Presence returns what is known of the agent's session now: it has ended at the latest when the agent did.
func (a *Agent) Presence() Harness {
	h := a.Harness
	if a.Ended() && h.Session != "" && h.State != HarnessEnded {
		h = h.after(Harness{Session: h.Session, Program: h.Program, State: HarnessEnded}, a.EndedAt())
	}
	return h
}

// Harnessed is what a registration says of the coding agent.
type Harnessed struct {
	Session   string              // what that session has reported stays
	Attention directory.Attention // 0 = as it is; of a new agent, and one that is replaced, AttentionOpen
}

// observe stores what a heartbeat reports of the agent's session, and of the mail that it wants.
func (r *Registry) observe(tx *store.Tx, session string, a *Agent, h Heartbeat) error {
	harness, attention := h.observed(a, tx.Now())
	if harness == a.Harness && attention == a.Attention {
		return nil
	}
	details := map[string]any{"agent": a.Name}
	summary := a.Name + " " + harness.Doing()
	if harness != a.Harness {
		details["harness"], details["program"], details["state"] = harness.Session, harness.Program, harness.State.String()
		details["tool"], details["listening"] = harness.Tool, harness.Listening
	}
	if attention != a.Attention {
		details["attention"], summary = attention.String(), fmt.Sprintf("%s: attention %s", a.Name, attention)
	}
	var err error
	if a.Revision, err = r.append(tx, *a, a.Name, events.Debug, "agent.presence", summary, details); err != nil {
		return err
	}
	tx.Exec(updateHarness, harness.Session, harness.Program, int64(harness.State), harness.Tool, harness.Listening,
		harness.Since, int64(attention), tx.Now(), a.Revision, a.ID)
	if attention != a.Attention {
		r.dir.AgentsChanged(tx)
	}
	a.Harness, a.Attention = harness, attention
	row := *a
	tx.OnCommit(func() { r.Presence.observed(session, row) })
	return nil
}

// observed returns what the heartbeat makes of the agent's session and its attention.
func (h *Heartbeat) observed(a *Agent, now time.Time) (Harness, directory.Attention) {
	harness, attention := a.Harness, a.Attention
	if h.Harness != nil {
		harness = harness.after(*h.Harness, now)
	}
	if h.Attention != 0 {
		attention = h.Attention
	}
	return harness, attention
}

// observed takes note of what an agent's session does.
func (p *Presence) observed(session string, a Agent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lives[agentKey{session, a.Name}]; l != nil && l.row == a.ID {
		l.awake = a.Harness.awake()
	}
}
