package admin

import (
	"context"
	"fmt"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
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
		own, _, err := s.own(snap, who)
		if err != nil {
			return err
		}
		if own != nil {
			about.AskerRole = own.Role
		}
		found, err := Explain(snap, s.parts.Explainers, about)
		for i := range found {
			out.Findings = append(out.Findings, found[i].Proto())
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	return out, nil
}

// question returns what is to be explained. Whether an id can be one is known to the feature.
func question(in *pb.ExplainRequest) (about finding.Question, err error) {
	switch subject := in.GetSubject().(type) {
	case *pb.ExplainRequest_Message:
		about.Kind, about.Name = finding.Message, subject.Message
	case *pb.ExplainRequest_Lock:
		about.Kind, about.Name = finding.Lock, subject.Lock
	case *pb.ExplainRequest_Token:
		about.Kind, about.Name = finding.Token, subject.Token
		kind, scope, both := strings.Cut(subject.Token, "/")
		if !both || scope == "" {
			return about, fault.Field("token", "is not TYPE/SCOPE, such as review/login")
		}
		var c validate.Check
		c.Name("token", kind)
		return about, c.Err()
	case *pb.ExplainRequest_Agent:
		about.Kind, about.Name = finding.Agent, subject.Agent
	case *pb.ExplainRequest_Role:
		about.Kind, about.Name = finding.Role, subject.Role
	case *pb.ExplainRequest_Task:
		about.Kind, about.Name = finding.Task, subject.Task
	case *pb.ExplainRequest_Decision:
		about.Kind, about.Name = finding.Decision, subject.Decision
	case *pb.ExplainRequest_Blocker:
		about.Kind, about.Name = finding.Blocker, subject.Blocker
	case *pb.ExplainRequest_Handoff:
		about.Kind, about.Name = finding.Handoff, subject.Handoff
	case *pb.ExplainRequest_Vote:
		about.Kind, about.Name = finding.Vote, subject.Vote
	case *pb.ExplainRequest_Channel:
		about.Kind, about.Name = finding.Channel, subject.Channel
	}
	return about, nil
}
