package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/caller"
	"brokerd/internal/store"
)

// Service is the AdminService of the API. Only operators get through to it.
type Service struct {
	pb.UnimplementedAdminServiceServer
	facts     Facts
	store     *store.Store
	directory Directory
	mailboxes Mailboxes
	traffic   Traffic
	inspector *Inspector

	clock      clockwork.Clock
	explainers []Explainer
}

// NewService returns the service.
func NewService(f Facts, s *store.Store, d Directory, m Mailboxes, t Traffic, i *Inspector, c clockwork.Clock, e ...Explainer) *Service {
	return &Service{facts: f, store: s, directory: d, mailboxes: m, traffic: t, inspector: i, clock: c, explainers: e}
}

// GetStatus implements pb.AdminServiceServer.
func (s *Service) GetStatus(ctx context.Context, _ *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	session := caller.FromContext(ctx).Session
	stats := s.store.Stats()
	out := &pb.GetStatusResponse{
		Version:       s.facts.Version,
		StartedAt:     timestamppb.New(s.facts.StartedAt),
		Sync:          s.facts.Sync.String(),
		DataDir:       s.facts.DataDir,
		Listen:        s.facts.Listen,
		DatabaseBytes: stats.DatabaseBytes,
		WalBytes:      stats.LogBytes,
		Commits:       int64(stats.Commits),
		CommitTime:    durationpb.New(stats.CommitTime / time.Duration(max(stats.Commits, 1))),
		Session:       session,
		Streams:       int32(s.traffic.Streams()),
	}
	err := s.store.Read(ctx, func(snap *store.Snapshot) error {
		out.Revision = snap.Revision()
		id, err := s.directory.SessionID(snap, session)
		if err != nil {
			return err
		}
		sessions, err := s.directory.Sessions(snap)
		if err != nil {
			return err
		}
		agents, err := s.directory.Agents(snap, id)
		if err != nil {
			return err
		}
		mail, err := s.mailboxes.Mail(snap, id)
		if err != nil {
			return err
		}
		out.Sessions, out.Agents = int32(sessions), int32(agents)
		out.Waiting, out.Claimed, out.Dead = mail.Waiting, mail.Claimed, mail.Dead
		for _, m := range mail.Fullest {
			out.Mailboxes = append(out.Mailboxes,
				&pb.MailboxStatus{Mailbox: m.Name, Waiting: m.Waiting, Claimed: m.Claimed, Dead: m.Dead})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("get status: %w", err)
	}
	return out, nil
}

// CheckDatabase implements pb.AdminServiceServer.
func (s *Service) CheckDatabase(ctx context.Context, _ *pb.CheckDatabaseRequest) (*pb.CheckDatabaseResponse, error) {
	problems, counted, err := s.inspector.Check(ctx)
	if err != nil {
		return nil, fmt.Errorf("check database: %w", err)
	}
	return &pb.CheckDatabaseResponse{
		Problems:   problems,
		Messages:   counted.Messages,
		Deliveries: counted.Deliveries,
		Events:     counted.Events,
		Revision:   counted.Revision,
	}, nil
}
