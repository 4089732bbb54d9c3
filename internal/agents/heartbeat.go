package agents

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Counters are what an agent has counted since it registered, as it says.
type Counters struct {
	Turns       int64
	ModelTokens int64
	Files       int64 // changed
	ToolCalls   int64
	Errors      int64
}

// A Heartbeat is what a sign of life reports; nil stays as it is.
type Heartbeat struct {
	Status   *Status
	Reason   *string // of the status; a new status without one has none
	Activity *string
	TaskID   *string
	Progress *float64
	Counters struct{ Turns, ModelTokens, Files, ToolCalls, Errors *int64 }
	LastTool *string
	LastFile *string
	Notices  bool // return the unread notices, and mark them read

	Harness   *Harness            // its time is not used
	Attention directory.Attention // 0 = as it is
}

// A Standing is what a heartbeat brings back.
type Standing struct {
	Incarnation int64
	Lease       time.Duration
	Unread      int64
	Claimable   int64
	Directives  []string            // types of the unfinished ones, oldest first
	Lost                            // reported once
	Notices     []work.UnreadNotice // likewise
}

// Heartbeat takes note of what the calling agent reports. It writes nothing if nothing changed.
// Errors: fault.Precondition as from directory.Directory.Acting.
func (r *Registry) Heartbeat(ctx context.Context, who identity.Caller, h Heartbeat) (Standing, error) {
	var st Standing
	var news bool
	err := r.store.Read(ctx, func(snap *store.Snapshot) error {
		a, err := r.calling(snap, who)
		if err != nil {
			return err
		}
		if news, err = r.hasNews(snap, a, h); err != nil {
			return err
		}
		harness, attention := h.observed(&a, a.Harness.Since)
		news = news || a.Ended() || h.stops() || h.apply(a.Report) != a.Report || harness != a.Harness || attention != a.Attention
		st, err = r.standing(snap, a)
		return err
	})
	if err == nil && news {
		err = r.store.Write(ctx, func(tx *store.Tx) error {
			a, err := r.report(tx, who, h)
			if err != nil {
				return err
			}
			st.Incarnation, st.Lease = a.Incarnation, a.Lease
			if !h.observes() {
				st.Lost, err = tellLosses(tx, a.ID)
			}
			if err != nil || !h.Notices || r.notices == nil {
				return err
			}
			st.Notices, err = r.notices.ReadNotices(tx, a.Session, a.Entry())
			return err
		})
	}
	if err != nil {
		return Standing{}, fmt.Errorf("heartbeat: %w", err)
	}
	return st, nil
}

// hasNews reports whether the agent has losses or, if it asks for them, notices that it does not
// know of.
func (r *Registry) hasNews(q store.Querier, a Agent, h Heartbeat) (bool, error) {
	lost, err := false, error(nil)
	if !h.observes() {
		lost, err = hasLosses(q, a.ID)
	}
	if lost || err != nil || !h.Notices || r.notices == nil {
		return lost, err
	}
	return r.notices.HasNotices(q, a.Session, a.Name)
}

func (r *Registry) standing(q store.Querier, a Agent) (Standing, error) {
	st := Standing{Incarnation: a.Incarnation, Lease: a.Lease}
	var err error
	if st.Unread, st.Claimable, err = r.mail.Counts(q, a.Session, a.Entry()); err != nil {
		return st, err
	}
	st.Directives, err = r.mail.Directives(q, a.Session, a.Name)
	return st, err
}

// observes reports whether a heartbeat only says what can be seen of the agent from outside, as that of a hook, whose
// sender tells the agent nothing.
func (h *Heartbeat) observes() bool {
	return (h.Harness != nil || h.Attention != 0) && *h == Heartbeat{Harness: h.Harness, Attention: h.Attention}
}

// stops reports whether the program of the agent ends.
func (h *Heartbeat) stops() bool { return h.Status != nil && *h.Status == Stopped }

// onlyEnds reports whether the heartbeat says only that a session has ended, or listens no longer. Then its agent does not
// come back.
func (h *Heartbeat) onlyEnds() bool {
	rest := *h
	rest.Harness = nil
	return h.Harness != nil && rest == Heartbeat{} &&
		(h.Harness.State == HarnessEnded || h.Harness.State == 0 && h.Harness.Listening == "")
}

func (h *Heartbeat) apply(to Report) Report {
	// How its work has ended says more than that the program has.
	stays := h.stops() && (to.Status == Completed || to.Status == StatusFailed)
	if h.Status != nil && *h.Status != to.Status && !stays {
		to.Status, to.Reason = *h.Status, ""
	}
	set(&to.Reason, h.Reason)
	set(&to.Activity, h.Activity)
	set(&to.TaskID, h.TaskID)
	set(&to.Progress, h.Progress)
	set(&to.Turns, h.Counters.Turns)
	set(&to.ModelTokens, h.Counters.ModelTokens)
	set(&to.Files, h.Counters.Files)
	set(&to.ToolCalls, h.Counters.ToolCalls)
	set(&to.Errors, h.Counters.Errors)
	set(&to.LastTool, h.LastTool)
	set(&to.LastFile, h.LastFile)
	return to
}

func set[V any](to, from *V) {
	if from != nil {
		*to = *from
	}
}

// report stores what a heartbeat reports, unless another one has by now, and returns the agent. An agent that has ended
// comes back first, unless it has stopped and says so again, or its session ends.
func (r *Registry) report(tx *store.Tx, who identity.Caller, h Heartbeat) (Agent, error) {
	a, err := r.admitted(tx, who)
	if err != nil || a.Stopped() && h.stops() || a.Ended() && h.onlyEnds() {
		return a, err
	}
	if a.Ended() {
		if a, err = r.revive(tx, who.Session, a); err != nil {
			return a, err
		}
	}
	if h.stops() && h.Harness == nil {
		h.Harness = &Harness{Session: a.Harness.Session, Program: a.Harness.Program, State: HarnessEnded}
	}
	if err := r.observe(tx, who.Session, &a, h); err != nil {
		return a, err
	}
	before := a.Report
	a.Report = h.apply(before)
	if a.Report == before && !h.stops() {
		return a, nil
	}
	kind, severity, summary := "agent.status", a.Status.severity(), a.Name+" is "+a.Status.String()
	if h.stops() {
		kind, summary = "agent.stopped", a.Name+" has stopped"
		a.StoppedAt = tx.Now()
	}
	if a.Reason != "" {
		summary += ": " + a.Reason
	} else if a.Activity != "" {
		summary += ": " + a.Activity
	}
	completed := a.Status == Completed && before.Status != Completed
	switch {
	case completed:
		a.CompletedAt = tx.Now()
	case a.Status != Completed:
		a.CompletedAt = time.Time{}
	}
	details := map[string]any{
		"agent":    a.Name,
		"status":   a.Status.String(),
		"previous": before.Status.String(),
		"activity": a.Activity,
		"task_id":  a.TaskID,
		"progress": a.Progress,
	}
	if a.Reason != "" {
		details["status_reason"] = a.Reason
	}
	if a.said() == before.said() && !h.stops() {
		kind, severity, summary = "agent.counted", events.Debug, a.Name+" goes on"
		details = map[string]any{"agent": a.Name}
	}
	if a.Counters != before.Counters {
		details["turns"], details["model_tokens"], details["files"] = a.Turns, a.ModelTokens, a.Files
		details["tool_calls"], details["errors"] = a.ToolCalls, a.Errors
	}
	if a.LastTool != before.LastTool {
		details["last_tool"] = a.LastTool
	}
	if a.LastFile != before.LastFile {
		details["last_file"] = a.LastFile
	}
	revision, err := r.append(tx, a, a.Name, severity, kind, summary, details)
	if err != nil {
		return a, err
	}
	tx.Exec(updateReport, int64(a.Status), a.Reason, a.CompletedAt, a.StoppedAt, a.Activity, a.TaskID, a.Progress,
		a.Turns, a.ModelTokens, a.Files, a.ToolCalls, a.Errors, a.LastTool, a.LastFile, tx.Now(), tx.Now(), revision, a.ID)
	switch {
	case h.stops():
		return a, r.stopped(tx, who.Session, a)
	case !completed:
		return a, nil
	}
	for _, hook := range r.Hooks.completed {
		if err := hook(tx, a.Entry()); err != nil {
			return a, err
		}
	}
	return a, nil
}

// stopped takes from an agent what it holds, as its program has ended well. The agent gave it up itself, so it
// loses nothing.
func (r *Registry) stopped(tx *store.Tx, session string, a Agent) error {
	r.dir.AgentsChanged(tx)
	if _, err := r.Hooks.end(tx, a); err != nil {
		return err
	}
	tx.OnCommit(func() {
		r.Presence.ends(session, a)
		r.zap.Info("an agent has stopped",
			zap.String("agent", a.Name), zap.String("session", session), zap.String("role", a.Role))
	})
	return nil
}

// said is what an agent says of what it does, without what it counts.
func (r Report) said() Report {
	return Report{Status: r.Status, Reason: r.Reason, Activity: r.Activity, TaskID: r.TaskID, Progress: r.Progress}
}

// severity is that of the event of a change to a status.
func (s Status) severity() events.Severity {
	switch s {
	case StatusDegraded:
		return events.Warning
	case StatusFailed:
		return events.Error
	default:
		return events.Info
	}
}
