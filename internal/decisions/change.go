package decisions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/nearest"
	"brokerd/internal/work"
)

// append adds the event of a change and stamps the decision with its revision. v is the verdict that
// the change gives, nil for none. The outcome is counted after the commit.
func (s *Service) append(t *work.Tx, d *pb.Decision, event string, v *pb.Verdict, summary string) (err error) {
	details := map[string]any{
		"kind": work.Word(d.Kind), "state": work.Word(d.State), "opener": d.Opener,
		"round": d.Round, "max_rounds": d.MaxRounds,
	}
	for name, value := range map[string]string{
		"scope": d.Scope, "agent": d.Agent, "role": d.Role, "escalated_to": d.EscalatedTo, "note": d.Note,
		"verdict": v.GetVerdict(), "decided_by": v.GetDecidedBy(),
	} {
		if value != "" {
			details[name] = value
		}
	}
	if v.GetUntil() != nil {
		details["until"] = v.Until.AsTime()
	}
	e := work.Event{Type: "decision." + event, Summary: summary, Details: details, Related: []string{d.Opener}}
	if d.State == escalated {
		e.Severity = events.Warning
	}
	for _, other := range []string{d.Agent, d.Role} {
		if other != "" && other != d.Opener {
			e.Related = append(e.Related, other)
		}
	}
	if d.Revision, err = s.Append(t, d, e); err != nil {
		return err
	}
	d.ChangedAt = work.Stamp(t.Now())
	if d.Id == "" {
		d.Id, d.OpenedAt = work.ID(s.Letter, d.Revision), d.ChangedAt
	}
	s.Count(t, event)
	return nil
}

// open opens a decision. Errors: fault.NotFound for an addressee that is not registered; fault.Denied for a
// shutdown by an agent that may not send directives; fault.Exists if an unfinished decision has the kind and
// scope; fault.Precondition if the actor does not hold the token to pass; fault.Exhausted at the limits of
// the session.
func (s *Service) open(t *work.Tx, in *pb.OpenDecisionRequest) (*pb.Decision, error) {
	if err := s.admit(t, in); err != nil {
		return nil, err
	}
	form := forms[in.GetKind()]
	d := &pb.Decision{
		Kind: in.GetKind(), State: open, Opener: t.Actor.Name, Agent: in.GetAgent(), Role: in.GetRole(),
		Title: in.GetTitle(), Scope: in.GetScope(),
		TaskId: in.GetTaskId(), ThreadId: in.GetThreadId(), Content: in.GetContent(), Verdicts: form.verdicts, Round: 1,
		MaxRounds: cmp.Or(in.GetMaxRounds(), someRounds), Deadline: in.GetDeadline(), PassToken: in.GetPassToken(),
		MessageType: form.request, OutcomeType: form.outcome,
	}
	if d.Kind == custom {
		d.Verdicts = in.GetVerdicts()
		d.MessageType, d.OutcomeType = cmp.Or(in.GetMessageType(), "request"), cmp.Or(in.GetOutcomeType(), "response")
	}
	if d.Content == nil {
		d.Content = &pb.DecisionContent{}
	}
	d.Title = cmp.Or(d.Title, d.Scope, work.Word(d.Kind)+" by "+d.Opener)
	summary := fmt.Sprintf("%s asks %s to decide: %s", d.Opener, addressee(d), d.Title)
	if err := s.append(t, d, "opened", nil, summary); err != nil {
		return nil, err
	}
	d.ThreadId = cmp.Or(d.ThreadId, d.Id)
	if err := s.handOver(t, d); err != nil {
		return nil, err
	}
	if err := s.Add(t, d); err != nil {
		return nil, err
	}
	if err := s.PutPart(t, d, "content", &pb.Decision{Content: d.Content}); err != nil {
		return nil, err
	}
	return d, s.submit(t, d)
}

// admit checks what only the transaction can.
func (s *Service) admit(t *work.Tx, in *pb.OpenDecisionRequest) error {
	if in.GetKind() == shutdown && !t.Actor.Directs(t.Session) {
		who := "operators"
		if directors := t.Session.Settings.GetDirectors().GetNames(); len(directors) > 0 {
			who += " and agents with the role " + strings.Join(directors, " or ")
		}
		return fault.New(fault.Denied, "NOT_A_DIRECTOR",
			"%s has the role %q; only %s may open shutdowns (session setting directors)",
			t.Actor.Name, t.Actor.Role, who)
	}
	if err := s.reach(t, in.GetAgent(), in.GetRole()); err != nil {
		return err
	}
	if err := checkAhead(t, "deadline", in.GetDeadline()); err != nil {
		return err
	}
	if in.GetScope() != "" {
		same := work.Filter[*pb.Decision]{
			Scope: in.GetScope(), Match: func(d *pb.Decision) bool { return d.Kind == in.GetKind() },
		}
		found, err := s.Open(t, t.Session.ID, same, mostUnfinished)
		if err != nil {
			return err
		}
		if len(found) > 0 {
			return fault.New(fault.Exists, "DECISION_UNFINISHED",
				"the session has an unfinished %s of %q, %s: wait for it, cancel it, or choose another scope",
				work.Word(in.GetKind()), in.GetScope(), found[0].Id).With("decision_id", found[0].Id)
		}
	}
	n, err := s.CountOpen(t, t.Session.ID)
	if err == nil && n >= mostUnfinished {
		err = fault.New(fault.Exhausted, "TOO_MANY_DECISIONS",
			"the session has %d unfinished decisions, which is the limit: decide or cancel some of them", mostUnfinished).
			With("limit", "unfinished_decisions")
	}
	return err
}

// reach checks that an addressee exists that is not the actor.
func (s *Service) reach(t *work.Tx, agent, role string) error {
	if agent != "" {
		if agent == t.Actor.Name {
			return fault.Field("agent", "%q opens the decision and cannot decide it: name another agent or a role", agent)
		}
		return s.Known(t, t.Session.ID, agent)
	}
	others, err := s.members(t, role, t.Actor.Name)
	if err == nil && len(others) == 0 {
		err = fault.Missing("role", role, "no agent of the role %q is registered that could decide", role)
	}
	return err
}

// members returns the agents of a role, without some.
func (s *Service) members(t *work.Tx, role string, except ...string) (names []string, err error) {
	found, err := s.Directory.Matching(t, t.Session.ID, directory.Selection{Role: role})
	for _, a := range found {
		if !slices.Contains(except, a.Name) {
			names = append(names, a.Name)
		}
	}
	return names, err
}

// handOver passes the token of a round from the opener to the addressee.
func (s *Service) handOver(t *work.Tx, d *pb.Decision) error {
	d.TokenFence = 0
	passed, err := s.pass(t, d, d.Opener, d.Agent, d.Role)
	if err == nil && d.PassToken && !passed {
		err = errTokenNotHeld(d)
	}
	return err
}

// pass passes the token of a decision on, if it passes one, and reports whether it did. The decision
// keeps the fence of the new grant.
func (s *Service) pass(t *work.Tx, d *pb.Decision, from, agent, role string) (passed bool, err error) {
	if !d.PassToken {
		return false, nil
	}
	d.TokenFence, passed, err = s.tokens.Hand(t.Tx, t.Session.ID, work.TokenPass{
		Token: TokenType + "/" + d.Scope, Fence: d.TokenFence, From: from, Agent: agent, Role: role,
		Note: about(d) + ", round " + fmt.Sprint(d.Round),
	})
	return passed, err
}

// decide gives the verdict of the round, and reports whether it has passed the token. Errors:
// fault.Precondition if the round has a verdict; fault.Denied for an agent that may not decide;
// fault.Invalid for another verdict than those of the decision.
func (s *Service) decide(t *work.Tx, d *pb.Decision, in *pb.DecideRequest) (passed bool, err error) {
	if err := admitVerdict(t, d, in); err != nil {
		return false, err
	}
	v := &pb.Verdict{
		Round: d.Round, Verdict: in.GetVerdict(), DecidedBy: t.Actor.Name, DecidedAt: work.Stamp(t.Now()),
		Reason: in.GetReason(),
		Until:  in.GetUntil(), Escalated: d.State == escalated,
	}
	for _, f := range in.GetFeedback() {
		severity := cmp.Or(f.GetSeverity(), pb.FeedbackSeverity_FEEDBACK_SEVERITY_MAJOR)
		v.Feedback = append(v.Feedback, &pb.Feedback{
			Severity: severity, File: f.GetFile(), Line: f.GetLine(), Text: f.GetText(),
		})
	}
	if v.Verdict == revise && d.State == open && d.Round >= d.MaxRounds {
		return false, s.escalate(t, d, v, fmt.Sprintf("round %d of %d has the verdict %s", d.Round, d.MaxRounds, revise))
	}
	if d.State = decided; v.Verdict == revise {
		d.State = revising
	} else {
		d.Verdict, d.Note = v.Verdict, ""
	}
	summary := fmt.Sprintf("%s has decided on %s: %s", v.DecidedBy, about(d), v.Verdict)
	if err := s.append(t, d, "decided", v, summary); err != nil {
		return false, err
	}
	if passed, err = s.pass(t, d, v.DecidedBy, d.Opener, ""); err != nil {
		return false, err
	}
	if err := s.addVerdict(t, d, v); err != nil {
		return false, err
	}
	if err := s.Put(t, d); err != nil {
		return false, err
	}
	if err := s.Post.Withdraw(t.Tx, t.Session.ID, work.Moot{About: s.Key(d)}); err != nil {
		return false, err
	}
	return passed, s.announce(t, d, v)
}

// admitVerdict refuses a verdict that the actor may not give.
func admitVerdict(t *work.Tx, d *pb.Decision, in *pb.DecideRequest) error {
	switch {
	case !waits(d) || in.GetRound() != 0 && in.GetRound() != d.Round:
		return errClosed(d)
	case !mayDecide(d, t.Actor, t.Session):
		return errNotYours(d, "%s", deciders(d, t.Session))
	case !slices.Contains(d.Verdicts, in.GetVerdict()):
		return errUnknownVerdict(d, in.GetVerdict())
	case in.GetVerdict() == deferring && in.GetUntil() == nil:
		return fault.Field("until", "is absent; the verdict %s names a time", deferring)
	case in.GetVerdict() != deferring && in.GetUntil() != nil:
		return fault.Field("until", "is set; only the verdict %s has it", deferring)
	}
	return checkAhead(t, "until", in.GetUntil())
}

// resubmit opens the next round of a decision. Errors: fault.Denied for another agent than the opener;
// fault.Precondition if it is not revising, and as open.
func (s *Service) resubmit(t *work.Tx, d *pb.Decision, in *pb.ResubmitDecisionRequest) error {
	if d.Opener != t.Actor.Name {
		return errNotYours(d, "only %s, who opened it, may resubmit it", d.Opener)
	}
	if d.State != revising {
		state := work.Word(d.State)
		return fault.New(fault.Precondition, "DECISION_NOT_REVISING",
			"%s is %s; a decision is resubmitted after the verdict %s",
			d.Id, state, revise).With("decision_id", d.Id).With("state", state)
	}
	if err := checkAhead(t, "deadline", in.GetDeadline()); err != nil {
		return err
	}
	if in.GetPassToken() && !mayPass(d.Kind, d.Scope) {
		return fault.Field("pass_token", onlyReviewsPass)
	}
	d.Title, d.PassToken = cmp.Or(in.GetTitle(), d.Title), d.PassToken || in.GetPassToken()
	if in.GetDeadline() != nil || !work.Time(d.Deadline).After(t.Now()) {
		d.Deadline = in.GetDeadline()
	}
	if in.GetContent() != nil {
		d.Content = in.GetContent()
	}
	d.Round++
	if last(d).GetEscalated() {
		return s.resubmitEscalated(t, d, d.Note, in)
	}
	if d.Agent != "" {
		_, found, err := s.Directory.Find(t, t.Session.ID, d.Agent)
		if err != nil {
			return err
		}
		if !found {
			return s.resubmitEscalated(t, d, d.Agent+" has deregistered", in)
		}
	} else if err := s.reach(t, "", d.Role); err != nil {
		return err
	}
	d.State, d.Note = open, ""
	summary := fmt.Sprintf("%s asks %s to decide round %d: %s", d.Opener, addressee(d), d.Round, d.Title)
	if err := s.append(t, d, "resubmitted", nil, summary); err != nil {
		return err
	}
	if err := s.handOver(t, d); err != nil {
		return err
	}
	if err := s.putWith(t, d, in.GetContent()); err != nil {
		return err
	}
	return s.submit(t, d)
}

// resubmitEscalated opens a round that the agents of an escalation decide. A request to pass the token is
// refused if the opener does not hold it; without one, the escalation continues without the token.
func (s *Service) resubmitEscalated(t *work.Tx, d *pb.Decision, why string, in *pb.ResubmitDecisionRequest) error {
	if err := s.choose(t, d, why); err != nil {
		return err
	}
	summary := fmt.Sprintf("%s asks for the verdict of round %d: %s", d.Opener, d.Round, d.Title)
	if err := s.append(t, d, "resubmitted", nil, summary); err != nil {
		return err
	}
	if in.GetPassToken() && d.EscalatedTo == "" {
		return fault.Field("pass_token",
			"is set, but no agent can take the token: no role of the session's escalate_to has one")
	}
	if d.EscalatedTo != "" {
		passed, err := s.pass(t, d, d.Opener, "", d.EscalatedTo)
		if err == nil && in.GetPassToken() && !passed {
			err = errTokenNotHeld(d)
		}
		if err != nil {
			return err
		}
	}
	if err := s.putWith(t, d, in.GetContent()); err != nil {
		return err
	}
	return s.sendEscalation(t, d)
}

// putWith stores a decision, with its new content if it has one.
func (s *Service) putWith(t *work.Tx, d *pb.Decision, content *pb.DecisionContent) error {
	if content != nil {
		if err := s.PutPart(t, d, "content", &pb.Decision{Content: content}); err != nil {
			return err
		}
	}
	return s.Put(t, d)
}

// escalate escalates an open decision. v is the verdict revise that does so, nil for another reason.
func (s *Service) escalate(t *work.Tx, d *pb.Decision, v *pb.Verdict, why string) error {
	if err := s.choose(t, d, why); err != nil {
		return err
	}
	if err := s.append(t, d, "escalated", v, fmt.Sprintf("%s escalates: %s", about(d), why)); err != nil {
		return err
	}
	if v != nil {
		if err := s.addVerdict(t, d, v); err != nil {
			return err
		}
	}
	if d.EscalatedTo != "" {
		if _, err := s.pass(t, d, v.GetDecidedBy(), "", d.EscalatedTo); err != nil {
			return err
		}
	}
	if err := s.Put(t, d); err != nil {
		return err
	}
	if err := s.Post.Withdraw(t.Tx, t.Session.ID, work.Moot{About: s.Key(d)}); err != nil {
		return err
	}
	if err := s.sendEscalation(t, d); err != nil {
		return err
	}
	return s.announceEscalation(t, d, v)
}

// choose makes the decision ESCALATED, to the first escalate_to role that has an agent other than
// the opener and the addressee.
func (s *Service) choose(t *work.Tx, d *pb.Decision, why string) error {
	d.State, d.EscalatedTo, d.Note = escalated, "", why
	for _, role := range t.Session.Settings.GetEscalateTo().GetNames() {
		members, err := s.members(t, role, d.Opener, d.Agent)
		if err != nil {
			return err
		}
		if len(members) > 0 {
			d.EscalatedTo = role
			return nil
		}
	}
	return nil
}

// cancel cancels a decision. heir receives the token; empty = it is released.
func (s *Service) cancel(t *work.Tx, d *pb.Decision, reason, heir string) error {
	waited := waits(d)
	d.State, d.Note = cancelled, reason
	summary := fmt.Sprintf("%s cancels %s", t.Actor.Name, about(d))
	if reason != "" {
		summary += ": " + reason
	}
	if err := s.append(t, d, "cancelled", nil, summary); err != nil {
		return err
	}
	if waited {
		if _, err := s.pass(t, d, "", heir, ""); err != nil {
			return err
		}
	}
	if err := s.Put(t, d); err != nil {
		return err
	}
	if err := s.Post.Withdraw(t.Tx, t.Session.ID, work.Moot{About: s.Key(d)}); err != nil {
		return err
	}
	return s.announceEnd(t, d, waited)
}

// checkAhead refuses a time that is not in the future; an absent one is none.
func checkAhead(t *work.Tx, field string, stamp *timestamppb.Timestamp) error {
	at, now := work.Time(stamp), t.Now()
	switch {
	case stamp == nil:
		return nil
	case !at.After(now):
		return fault.Field(field, "is not in the future: it is %s now", now.UTC().Format(time.RFC3339))
	case at.Sub(now) > mostAhead:
		return fault.Field(field, "is more than 365 days ahead")
	}
	return nil
}

// errTokenNotHeld is the error for an opener that does not hold the token that it wants to pass.
func errTokenNotHeld(d *pb.Decision) error {
	lost := fault.New(fault.Precondition, "TOKEN_NOT_HELD",
		"%s does not hold the token to pass: acquire the token of type %s and scope %q first", d.Opener, TokenType, d.Scope)
	lost.Resource, lost.Name = "token", d.Scope
	return lost
}

// errUnknownVerdict is the error for a verdict that the decision does not have.
func errUnknownVerdict(d *pb.Decision, verdict string) error {
	says := fmt.Sprintf("is %q; the verdicts of %s are %s", verdict, d.Id, strings.Join(d.Verdicts, ", "))
	if near := nearest.Names(verdict, d.Verdicts); len(near) > 0 && nearest.Like(verdict, near[0]) {
		says += "; " + nearest.Hint(verdict, d.Verdicts)
	}
	return fault.Field("verdict", "%s", says)
}

// errNotYours is the error for a caller that may not make a change.
func errNotYours(d *pb.Decision, format string, args ...any) error {
	return fault.New(fault.Denied, "NOT_YOUR_DECISION", "%s: %s", d.Id, fmt.Sprintf(format, args...)).
		With("decision_id", d.Id)
}

// errClosed is the error for a change that the state of the decision does not permit.
func errClosed(d *pb.Decision) error {
	state := work.Word(d.State)
	says := "is " + state
	switch v := last(d); {
	case waits(d):
		says = fmt.Sprintf("waits for a verdict on round %d, not on another round", d.Round)
	case d.State == cancelled && d.Note != "":
		says += ": " + finding.Clip(d.Note)
	case d.State != cancelled && v != nil:
		says = fmt.Sprintf("is already decided: the verdict of %s on round %d is %s", v.DecidedBy, v.Round, v.Verdict)
	}
	return fault.New(fault.Precondition, "DECISION_CLOSED", "%s %s", d.Id, says).
		With("decision_id", d.Id).With("state", state)
}
