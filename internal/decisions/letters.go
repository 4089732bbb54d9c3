package decisions

import (
	"encoding/json"
	"fmt"
	"time"

	"brokerd/internal/work"
)

// letter returns the type of the message that asks for a verdict.
func (k Kind) letter() string {
	return [...]string{Review: "submit_for_review", Plan: "plan_submission", Shutdown: "shutdown_request", Custom: ""}[k]
}

// outcome returns the type of the notices of verdicts; that of a review depends on the verdict.
func (k Kind) outcome() string {
	return [...]string{Review: "", Plan: "plan_approval", Shutdown: "shutdown_response", Custom: ""}[k]
}

// reviewOutcomes are the types of the notices of a review, by verdict.
var reviewOutcomes = map[string]string{"approve": "review_approved", Revise: "revision_requested", "reject": "review_rejected"}

// escalation is the type of the messages and notices of an escalation.
const escalation = "escalate"

// A request is the payload of a message that asks for a verdict.
type request struct {
	ID        string          `json:"decision_id"`
	Kind      string          `json:"kind"`
	Scope     string          `json:"scope,omitempty"`
	Title     string          `json:"title"`
	OpenedBy  string          `json:"opened_by"`
	Round     int             `json:"round"`
	MaxRounds int             `json:"max_rounds"`
	Verdicts  []string        `json:"verdicts"`
	Deadline  *time.Time      `json:"deadline,omitempty"`
	TaskID    string          `json:"task_id,omitempty"`
	Files     []File          `json:"files,omitempty"`
	Artifacts []string        `json:"artifacts,omitempty"`
	Reason    string          `json:"reason,omitempty"` // of an escalation
	Payload   json.RawMessage `json:"payload,omitempty"`
}

func (d *Decision) request() (string, error) {
	r := request{
		ID: d.Name(), Kind: d.Kind.String(), Scope: d.Scope, Title: d.Title, OpenedBy: d.OpenedBy, Round: d.Round, MaxRounds: d.MaxRounds,
		Verdicts: d.Verdicts, Deadline: orNil(d.Deadline), TaskID: d.Task, Files: d.Content.Files, Artifacts: d.Content.Artifacts,
		Reason: d.Note, Payload: json.RawMessage(d.Content.Payload),
	}
	text, err := json.Marshal(r)
	return string(text), err
}

// submit sends the message of a round to the addressee.
func (u *decisionTx) submit(d *Decision) error {
	l := work.Letter{From: u.actor, Role: d.Role, Type: d.MessageType, Subject: d.Title}
	if d.Agent != "" {
		l.To = []string{d.Agent}
	}
	if d.Round > 1 {
		l.Subject = fmt.Sprintf("%s (round %d of %d)", d.Title, d.Round, d.MaxRounds)
	}
	if d.Role != "" && d.Role == u.actor.Role { // the opener is of the role and must not receive its own request
		var err error
		if l.To, err = u.members(d.Role, d.OpenedBy); err != nil {
			return err
		}
		l.Role = ""
	}
	return u.send(d, l)
}

// sendEscalation asks one agent of the role of an escalation for the verdict.
func (u *decisionTx) sendEscalation(d *Decision) error {
	if d.EscalatedTo == "" {
		return nil
	}
	others, err := u.members(d.EscalatedTo, d.OpenedBy, d.Agent)
	if err != nil {
		return err
	}
	return u.send(d, work.Letter{
		From: u.actor, To: others, Type: escalation, Subject: fmt.Sprintf("decide %s by %s: %s", d, d.OpenedBy, d.Note),
	})
}

// send sends a message that asks for a verdict.
func (u *decisionTx) send(d *Decision, l work.Letter) (err error) {
	if l.Payload, err = d.request(); err != nil {
		return err
	}
	l.Body, l.Task, l.Thread, l.Artifacts, l.About = d.Content.Body, d.Task, d.Thread, d.Content.Artifacts, d.ID
	if _, err := u.Post.Post(u.tx, d.Session, l); err != nil {
		return fmt.Errorf("ask for the verdict: %w", err)
	}
	return nil
}

// An answer is the payload of a notice about a decision.
type answer struct {
	ID        string     `json:"decision_id"`
	Kind      string     `json:"kind"`
	Scope     string     `json:"scope,omitempty"`
	Title     string     `json:"title"`
	State     string     `json:"state"`
	Round     int        `json:"round"`
	Verdict   string     `json:"verdict,omitempty"`
	Approved  *bool      `json:"approved,omitempty"` // of a plan
	Accepted  *bool      `json:"accepted,omitempty"` // of a shutdown
	DecidedBy string     `json:"decided_by,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Feedback  []Feedback `json:"feedback,omitempty"`
	Until     *time.Time `json:"until,omitempty"`
	TaskID    string     `json:"task_id,omitempty"`
}

func (d *Decision) answer(v *Verdict) answer {
	a := answer{
		ID: d.Name(), Kind: d.Kind.String(), Scope: d.Scope, Title: d.Title, State: d.State.String(), Round: d.Round,
		Reason: d.Note, TaskID: d.Task,
	}
	if v != nil {
		a.Verdict, a.DecidedBy, a.Reason, a.Feedback, a.Until = v.Verdict, v.By, v.Reason, v.Feedback, orNil(v.Until)
	}
	return a
}

// announce notifies the opener of a verdict.
func (u *decisionTx) announce(d *Decision, v *Verdict) error {
	a := d.answer(v)
	kind := d.OutcomeType
	switch d.Kind {
	case Review:
		kind = reviewOutcomes[v.Verdict]
	case Plan:
		approved := v.Verdict == "approve"
		a.Approved = &approved
	case Shutdown:
		accepted := v.Verdict == "accept"
		a.Accepted = &accepted
	case Custom:
	}
	says := fmt.Sprintf("%s decides on %s: %s", v.By, d, v.Verdict)
	if v.Reason != "" {
		says += ": " + v.Reason
	}
	if !v.Until.IsZero() {
		says += "; until " + v.Until.Format(time.RFC3339)
	}
	if len(v.Feedback) > 0 {
		says += "; feedback: brokerctl decision get " + d.Name()
	}
	return u.notify(d, work.Notice{Agent: d.OpenedBy, Type: kind, Subject: says}, a)
}

// announceEscalation notifies the opener that other agents decide.
func (u *decisionTx) announceEscalation(d *Decision, v *Verdict) error {
	by := "an operator decides"
	if d.EscalatedTo != "" {
		by = "an agent of the role " + d.EscalatedTo + " decides"
	}
	a := d.answer(v)
	a.Reason = d.Note
	return u.notify(d, work.Notice{Agent: d.OpenedBy, Type: escalation, Subject: fmt.Sprintf("%s has escalated, %s: %s", d, by, d.Note)}, a)
}

// announceEnd notifies the other side that a decision is cancelled: the addressee, and the opener if
// another caller cancels it.
func (u *decisionTx) announceEnd(d *Decision, waited bool) error {
	says := fmt.Sprintf("%s by %s is cancelled", d, d.OpenedBy)
	if d.Note != "" {
		says += ": " + d.Note
	}
	n := work.Notice{Type: "decision_cancelled", Subject: says}
	if u.by() != d.OpenedBy {
		n.Agent = d.OpenedBy
		if err := u.notify(d, n, d.answer(nil)); err != nil {
			return err
		}
	}
	if !waited {
		return nil
	}
	n.Agent, n.Role = d.Agent, d.Role
	if d.EscalatedTo != "" {
		n.Agent, n.Role = "", d.EscalatedTo
	}
	return u.notify(d, n, d.answer(nil))
}

func (u *decisionTx) notify(d *Decision, n work.Notice, a answer) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	n.Payload, n.Task = string(text), d.Task
	return u.Post.Notify(u.tx, d.Session, n)
}

func orNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
