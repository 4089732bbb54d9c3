package admin

import (
	"context"
	"fmt"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/finding"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

// Explain implements pb.AdminServiceServer.
func (s *Service) Explain(ctx context.Context, in *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	about, err := question(in)
	if err != nil {
		return nil, err
	}
	who := identity.FromContext(ctx)
	about.SessionName, about.Asker = who.Session, who.Agent
	out := &pb.ExplainResponse{}
	err = s.parts.Store.Read(ctx, func(snap *store.Snapshot) error {
		out.Revision, about.Now = snap.Revision(), s.parts.Clock.Now()
		var err error
		if about.Session, err = s.parts.Directory.SessionID(snap, about.SessionName); err != nil {
			return err
		}
		own, err := s.own(snap, who)
		if err != nil {
			return err
		}
		if own != nil {
			about.AskerRole = own.Role
		}
		found, err := Explain(snap, s.parts.Explainers, about)
		for i := range found {
			out.Findings = append(out.Findings, found[i].Proto(&about))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	return out, nil
}

// question checks what is to be explained. Whether an id can be one is known to the feature.
func question(in *pb.ExplainRequest) (about finding.Question, err error) {
	var c validate.Check
	required := func(field, s string, most int) {
		if s == "" {
			c.Fail(field, "is empty; without a subject, the worst problems are told")
		}
		c.Line(field, s, most)
		about.Name = s
	}
	switch subject := in.GetSubject().(type) {
	case *pb.ExplainRequest_Message:
		about.Kind = finding.Message
		required("message", subject.Message, validate.MaxID)
	case *pb.ExplainRequest_Lock:
		about.Kind = finding.Lock
		required("lock", subject.Lock, validate.MaxPath)
	case *pb.ExplainRequest_Token:
		about.Kind = finding.Token
		required("token", subject.Token, validate.MaxID+1+validate.MaxLine)
		kind, scope, both := strings.Cut(subject.Token, "/")
		if !both || scope == "" {
			c.Fail("token", "is not TYPE/SCOPE, such as review/login")
		} else {
			c.Name("token", kind)
		}
	case *pb.ExplainRequest_Agent:
		about.Kind, about.Name = finding.Agent, subject.Agent
		c.Name("agent", subject.Agent)
	case *pb.ExplainRequest_Role:
		about.Kind, about.Name = finding.Role, subject.Role
		c.Name("role", subject.Role)
	case *pb.ExplainRequest_Task:
		about.Kind = finding.Task
		required("task", subject.Task, validate.MaxID)
	case *pb.ExplainRequest_Decision:
		about.Kind = finding.Decision
		required("decision", subject.Decision, validate.MaxID)
	case *pb.ExplainRequest_Blocker:
		about.Kind = finding.Blocker
		required("blocker", subject.Blocker, validate.MaxID)
	case *pb.ExplainRequest_Handoff:
		about.Kind = finding.Handoff
		required("handoff", subject.Handoff, validate.MaxID)
	case *pb.ExplainRequest_Vote:
		about.Kind = finding.Vote
		required("vote", subject.Vote, validate.MaxID)
	case *pb.ExplainRequest_Channel:
		about.Kind = finding.Channel
		required("channel", subject.Channel, len("event/")+validate.MaxID)
	}
	return about, c.Err()
}
