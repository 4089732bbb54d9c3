package decisions

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/work"
)

// reviewOutcomes are the types of the notices of a review, by verdict.
var reviewOutcomes = map[string]string{
	"approve": "review_approved", revise: "revision_requested", "reject": "review_rejected",
}

// escalation is the type of the messages and notices of an escalation.
const escalation = "escalate"

// A request is the payload of a message that asks for a verdict.
type request struct {
	ID        string          `json:"decision_id"`
	Kind      string          `json:"kind"`
	Scope     string          `json:"scope,omitempty"`
	Title     string          `json:"title"`
	Opener    string          `json:"opener"`
	Round     int32           `json:"round"`
	MaxRounds int32           `json:"max_rounds"`
	Verdicts  []string        `json:"verdicts"`
	Deadline  *time.Time      `json:"deadline,omitempty"`
	TaskID    string          `json:"task_id,omitempty"`
	Files     []file          `json:"files,omitempty"`
	Artifacts []string        `json:"artifacts,omitempty"`
	Reason    string          `json:"reason,omitempty"` // of an escalation
	Payload   json.RawMessage `json:"payload,omitempty"`
}

type file struct {
	Path string `json:"path"`
	Line int32  `json:"line,omitempty"`
}

func requestOf(d *pb.Decision) (string, error) {
	r := request{
		ID: d.Id, Kind: work.Word(d.Kind), Scope: d.Scope, Title: d.Title, Opener: d.Opener, Round: d.Round,
		MaxRounds: d.MaxRounds,
		Verdicts:  d.Verdicts, Deadline: orNil(d.Deadline), TaskID: d.TaskId, Artifacts: d.GetContent().GetArtifacts(),
		Reason: d.Note, Payload: json.RawMessage(d.GetContent().GetPayload()),
	}
	for _, f := range d.GetContent().GetFiles() {
		r.Files = append(r.Files, file{f.Path, f.Line})
	}
	text, err := json.Marshal(r)
	return string(text), err
}

// submit sends the message of a round to the addressee.
func (s *Service) submit(t *work.Tx, d *pb.Decision) error {
	l := work.Letter{From: t.Actor, Role: d.Role, Type: d.MessageType, Subject: d.Title}
	if d.Agent != "" {
		l.To = []string{d.Agent}
	}
	if d.Round > 1 {
		l.Subject = fmt.Sprintf("%s (round %d of %d)", d.Title, d.Round, d.MaxRounds)
	}
	if d.Role != "" && d.Role == t.Actor.Role { // the opener is of the role and must not receive its own request
		var err error
		if l.To, err = s.members(t, d.Role, d.Opener); err != nil {
			return err
		}
		l.Role = ""
	}
	return s.send(t, d, l)
}

// sendEscalation asks one agent of the role of an escalation for the verdict.
func (s *Service) sendEscalation(t *work.Tx, d *pb.Decision) error {
	if d.EscalatedTo == "" {
		return nil
	}
	others, err := s.members(t, d.EscalatedTo, d.Opener, d.Agent)
	if err != nil {
		return err
	}
	return s.send(t, d, work.Letter{
		From: t.Actor, To: others, Type: escalation,
		Subject: fmt.Sprintf("decide %s by %s: %s", about(d), d.Opener, d.Note),
	})
}

// send sends a message that asks for a verdict.
func (s *Service) send(t *work.Tx, d *pb.Decision, l work.Letter) (err error) {
	if l.Payload, err = requestOf(d); err != nil {
		return err
	}
	l.Body, l.Artifacts = d.GetContent().GetBody(), d.GetContent().GetArtifacts()
	l.Task, l.Thread, l.About = d.TaskId, d.ThreadId, s.Key(d)
	if _, err := s.Post.Post(t.Tx, t.Session.ID, l); err != nil {
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
	Round     int32      `json:"round"`
	Verdict   string     `json:"verdict,omitempty"`
	Approved  *bool      `json:"approved,omitempty"` // of a plan
	Accepted  *bool      `json:"accepted,omitempty"` // of a shutdown
	DecidedBy string     `json:"decided_by,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Feedback  []feedback `json:"feedback,omitempty"`
	Until     *time.Time `json:"until,omitempty"`
	TaskID    string     `json:"task_id,omitempty"`
}

type feedback struct {
	Severity string `json:"severity"`
	File     string `json:"file,omitempty"`
	Line     int32  `json:"line,omitempty"`
	Text     string `json:"text"`
}

func answerOf(d *pb.Decision, v *pb.Verdict) answer {
	a := answer{
		ID: d.Id, Kind: work.Word(d.Kind), Scope: d.Scope, Title: d.Title, State: work.Word(d.State), Round: d.Round,
		Reason: d.Note, TaskID: d.TaskId,
	}
	if v != nil {
		a.Verdict, a.DecidedBy, a.Reason, a.Until = v.Verdict, v.DecidedBy, v.Reason, orNil(v.Until)
		for _, f := range v.Feedback {
			a.Feedback = append(a.Feedback, feedback{work.Word(f.Severity), f.File, f.Line, f.Text})
		}
	}
	return a
}

// announce notifies the opener of a verdict.
func (s *Service) announce(t *work.Tx, d *pb.Decision, v *pb.Verdict) error {
	a := answerOf(d, v)
	kind := d.OutcomeType
	switch d.Kind {
	case review:
		kind = reviewOutcomes[v.Verdict]
	case plan:
		approved := v.Verdict == "approve"
		a.Approved = &approved
	case shutdown:
		accepted := v.Verdict == "accept"
		a.Accepted = &accepted
	}
	says := fmt.Sprintf("%s decides on %s: %s", v.DecidedBy, about(d), v.Verdict)
	if v.Reason != "" {
		says += ": " + v.Reason
	}
	if v.Until != nil {
		says += "; until " + v.Until.AsTime().Format(time.RFC3339)
	}
	if len(v.Feedback) > 0 {
		says += "; its feedback is in decision " + d.Id
	}
	return s.notify(t, d, work.Notice{Agent: d.Opener, Type: kind, Subject: says}, a)
}

// announceEscalation notifies the opener that other agents decide.
func (s *Service) announceEscalation(t *work.Tx, d *pb.Decision, v *pb.Verdict) error {
	by := "an operator decides"
	if d.EscalatedTo != "" {
		by = "an agent of the role " + d.EscalatedTo + " decides"
	}
	a := answerOf(d, v)
	a.Reason = d.Note
	says := fmt.Sprintf("%s has escalated, %s: %s", about(d), by, d.Note)
	return s.notify(t, d, work.Notice{Agent: d.Opener, Type: escalation, Subject: says}, a)
}

// announceEnd notifies the other side that a decision is cancelled: the addressee, and the opener if
// another caller cancels it.
func (s *Service) announceEnd(t *work.Tx, d *pb.Decision, waited bool) error {
	says := fmt.Sprintf("%s by %s is cancelled", about(d), d.Opener)
	if d.Note != "" {
		says += ": " + d.Note
	}
	n := work.Notice{Type: "decision_cancelled", Subject: says}
	if t.Actor.Name != d.Opener {
		n.Agent = d.Opener
		if err := s.notify(t, d, n, answerOf(d, nil)); err != nil {
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
	return s.notify(t, d, n, answerOf(d, nil))
}

func (s *Service) notify(t *work.Tx, d *pb.Decision, n work.Notice, a answer) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	n.Payload, n.Task = string(text), d.TaskId
	return s.Post.Notify(t.Tx, t.Session.ID, n)
}

func orNil(stamp *timestamppb.Timestamp) *time.Time {
	if stamp == nil {
		return nil
	}
	t := stamp.AsTime()
	return &t
}
