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
	parts Parts
}

// Parts are whom the service asks.
type Parts struct {
	Facts      Facts
	Store      *store.Store
	Clock      clockwork.Clock
	Directory  Directory
	Mailboxes  Mailboxes
	Commons    Commons
	Traffic    Traffic
	Inspector  *Inspector
	Explainers []Explainer
}

// NewService returns the service.
func NewService(p Parts) *Service { return &Service{parts: p} }

// GetStatus implements pb.AdminServiceServer.
func (s *Service) GetStatus(ctx context.Context, _ *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	session := caller.FromContext(ctx).Session
	stats := s.parts.Store.Stats()
	cpu, memory := processUsage()
	out := &pb.GetStatusResponse{
		Version:       s.parts.Facts.Version,
		StartedAt:     timestamppb.New(s.parts.Facts.StartedAt),
		Sync:          s.parts.Facts.Sync.String(),
		DataDir:       s.parts.Facts.DataDir,
		Listen:        s.parts.Facts.Listen,
		DatabaseBytes: stats.DatabaseBytes,
		WalBytes:      stats.LogBytes,
		WalLeftOut:    stats.LeftOut,
		Commits:       int64(stats.Commits),
		CommitTime:    durationpb.New(stats.CommitTime / time.Duration(max(stats.Commits, 1))),
		Session:       session,
		Streams:       int32(s.parts.Traffic.Streams()),

		ProcessCpuTime: durationpb.New(cpu), ProcessMemoryBytes: memory,
	}
	err := s.parts.Store.Read(ctx, func(snap *store.Snapshot) error {
		out.Revision = snap.Revision()
		id, err := s.parts.Directory.SessionID(snap, session)
		if err != nil {
			return err
		}
		sessions, err := s.parts.Directory.Sessions(snap)
		if err != nil {
			return err
		}
		agents, err := s.parts.Directory.Agents(snap, id)
		if err != nil {
			return err
		}
		mail, err := s.parts.Mailboxes.Mail(snap, id)
		if err != nil {
			return err
		}
		shared, err := s.parts.Commons.Coordination(snap, id)
		if err != nil {
			return err
		}
		out.Sessions = int32(sessions)
		out.Agents, out.LateAgents, out.FailedAgents = int32(agents.Agents), int32(agents.Late), int32(agents.Failed)
		out.Locks, out.TokensHeld, out.Tickets, out.StateKeys = shared.Locks, shared.Tokens, shared.Tickets, shared.Keys
		out.Waiting, out.Claimed, out.Dead = mail.Waiting, mail.Claimed, mail.Dead
		for _, m := range mail.Fullest {
			out.Mailboxes = append(out.Mailboxes,
				&pb.MailboxStatus{Mailbox: m.Name, Waiting: m.Waiting, Claimed: m.Claimed, Dead: m.Dead})
		}
		return nil
	})
	if err != nil && !store.IsDamage(err) {
		return nil, fmt.Errorf("get status: %w", err)
	}
	out.Damage = s.parts.Store.Damage() // last, since the queries may find some
	return out, nil
}

// CheckDatabase implements pb.AdminServiceServer.
func (s *Service) CheckDatabase(ctx context.Context, _ *pb.CheckDatabaseRequest) (*pb.CheckDatabaseResponse, error) {
	problems, counted, err := s.parts.Inspector.Check(ctx)
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
