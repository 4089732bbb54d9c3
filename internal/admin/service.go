package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// fullest is how many mailboxes a status names.
const fullest = 20

// Service is the AdminService of the API.
type Service struct {
	pb.UnimplementedAdminServiceServer
	parts Parts
}

// Parts are whom the service asks.
type Parts struct {
	Facts      Facts
	Store      *store.Store
	Clock      clockwork.Clock
	Directory  *directory.Directory
	Agents     Agents
	Presence   Presence
	Mailboxes  Mailboxes
	Commons    Commons
	Traffic    Traffic
	Inspector  *Inspector
	Explainers []Explainer
	Drains     Drains
}

// Drains knows whether the broker is drained.
type Drains interface {
	// Since returns when the drain began that is in force; zero if there is none.
	Since(q store.Querier) (time.Time, error)
}

// NewService returns the service.
func NewService(p Parts) *Service { return &Service{parts: p} }

// GetStatus implements pb.AdminServiceServer.
func (s *Service) GetStatus(ctx context.Context, _ *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	who := identity.FromContext(ctx)
	out := &pb.GetStatusResponse{Version: s.parts.Facts.Version, Session: who.Session}
	if who.Agent == "" {
		if err := s.daemon(ctx, out); err != nil && !store.IsDamage(err) {
			return nil, fmt.Errorf("get status: %w", err)
		}
	}
	err := s.parts.Store.Read(ctx, func(snap *store.Snapshot) error {
		out.Revision = snap.Revision()
		id, err := s.parts.Directory.SessionID(snap, who.Session)
		if err != nil {
			return err
		}
		since, err := s.parts.Drains.Since(snap)
		if err != nil {
			return err
		}
		if !since.IsZero() {
			out.DrainingSince = timestamppb.New(since)
		}
		own, held, err := s.own(snap, who)
		if err != nil {
			return err
		}
		agents := s.parts.Presence.Pulse(who.Session)
		boxes, mail, err := s.parts.Mailboxes.Status(snap, id, own, fullest)
		if err != nil {
			return err
		}
		shared, err := s.parts.Commons.Coordination(snap, id)
		if err != nil {
			return err
		}
		for _, n := range shared.Work {
			out.Work = append(out.Work, &pb.WorkCount{Kind: n.Kind, State: n.State, Count: n.N})
		}
		out.Agents, out.LateAgents, out.FailedAgents = int32(agents.Agents), int32(agents.Late), int32(agents.Failed)
		out.StoppedAgents = int32(agents.Stopped)
		out.Locks, out.TokensHeld, out.Tickets, out.StateKeys = shared.Locks, shared.Tokens, shared.Tickets, shared.Keys
		if own != nil {
			out.Agent, out.Role = own.Name, own.Role
			out.Asked, out.ToAnswer = int32(len(held.Asked)), int32(len(held.ToAnswer))
			out.Locks, out.TokensHeld = int64(len(held.Locks)), int64(len(held.Tokens))
			out.Tickets = int64(len(held.Tickets))
		} else {
			sessions, err := s.parts.Directory.CountSessions(snap)
			if err != nil {
				return err
			}
			out.Sessions = int32(sessions)
			waiting, err := s.parts.Mailboxes.Waiting(snap, id, []string{identity.System})
			if err != nil {
				return err
			}
			out.OperatorMail = waiting[identity.System]
		}
		out.Waiting, out.Claimed, out.Dead = mail.Waiting, mail.Claimed, mail.Dead
		for _, m := range boxes {
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

// daemon adds what concerns the daemon alone.
func (s *Service) daemon(ctx context.Context, out *pb.GetStatusResponse) error {
	stats := s.parts.Store.Stats()
	cpu, memory := processUsage()
	out.StartedAt = timestamppb.New(s.parts.Facts.StartedAt)
	out.Sync = s.parts.Facts.Sync.String()
	out.DataDir, out.Listen = s.parts.Facts.Here(ctx)
	out.Store, out.WalBytes, out.WalLeftOut = s.parts.Store.Name(), stats.LogBytes, stats.LeftOut
	out.Commits = int64(stats.Commits)
	out.CommitTime = durationpb.New(stats.CommitTime / time.Duration(max(stats.Commits, 1)))
	out.Streams = int32(s.parts.Traffic.Streams())
	if read := s.parts.Facts.Replicas; read != nil {
		through, all := read(ctx)
		out.Replica = through
		for _, r := range all {
			out.Replicas = append(out.Replicas, &pb.Replica{
				Address: r.Address, Version: r.Version, Leads: r.Leads, LedFor: durationpb.New(r.Since), SilentFor: durationpb.New(r.Silent),
			})
		}
	}
	out.ProcessCpuTime, out.ProcessMemoryBytes = durationpb.New(cpu), memory
	facts, err := s.parts.Store.Facts(ctx)
	out.DatabaseBytes, out.Confirmed = facts.Bytes, facts.Confirmed
	return err
}

// own returns the calling agent with what it holds; nil for an operator who names no agent.
func (s *Service) own(q store.Querier, who identity.Caller) (*directory.Agent, work.Holdings, error) {
	if who.Agent == "" {
		return nil, work.Holdings{}, nil
	}
	own, held, err := s.parts.Agents.Own(q, who)
	return &own, held, err
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
