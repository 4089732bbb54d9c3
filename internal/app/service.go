package app

import (
	"context"

	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/admin"
	"brokerd/internal/agents"
	"brokerd/internal/auth"
	"brokerd/internal/backup"
	"brokerd/internal/drain"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/locks"
	"brokerd/internal/messagesrpc"
	"brokerd/internal/overview"
	"brokerd/internal/retention"
	"brokerd/internal/rpc"
	"brokerd/internal/sessions"
	"brokerd/internal/state"
)

// sessionService is one service of the API, made by two features.
type sessionService struct {
	*sessions.Service
	*retention.SessionService
}

// adminService is one service of the API, made by several features.
type adminService struct {
	*admin.Service
	*backup.AdminService
	*retention.PruneService
	*drain.Server
	*overview.WatchService
	*messagesrpc.MoveService
	*doorman
}

// A doorman opens a TCP address while the daemon runs.
type doorman struct {
	app    *App
	server *rpc.Server
}

// OpenLoopback implements pb.AdminServiceServer.
func (d *doorman) OpenLoopback(ctx context.Context, _ *pb.OpenLoopbackRequest) (*pb.OpenLoopbackResponse, error) {
	if via := rpc.ViaOf(ctx); via != nil {
		address := firstTCP(via.Addresses)
		if address == "" {
			return nil, fault.New(fault.Precondition, "NOT_THE_LEADER",
				"the replica %s does not lead, and so opens no address: start it with one for TCP, or connect to the leader", via.Replica)
		}
		return &pb.OpenLoopbackResponse{Address: address}, nil
	}
	address, opened, err := d.app.openLoopback(d.server)
	if err != nil {
		return nil, err
	}
	return &pb.OpenLoopbackResponse{Address: address, Opened: opened}, nil
}

// register adds the services of the API to the server.
func register(p *parts, log *zap.Logger, adminService pb.AdminServiceServer) {
	pb.RegisterAdminServiceServer(p.rpc, adminService)
	pb.RegisterAgentServiceServer(p.rpc, agents.NewService(p.agents))
	pb.RegisterArtifactServiceServer(p.rpc, p.artifacts)
	pb.RegisterBlockerServiceServer(p.rpc, p.blockers)
	pb.RegisterCatalogServiceServer(p.rpc, p.catalog)
	pb.RegisterCredentialServiceServer(p.rpc, auth.NewService(p.auth))
	pb.RegisterHandoffServiceServer(p.rpc, p.handoffs)
	pb.RegisterChannelServiceServer(p.rpc, messagesrpc.NewChannelService(p.channels))
	pb.RegisterDecisionServiceServer(p.rpc, p.decisions)
	pb.RegisterEventServiceServer(p.rpc, events.NewService(p.events, p.directory, p.admission, p.blockers))
	pb.RegisterLockServiceServer(p.rpc, locks.NewService(p.locks, p.rpc.ItemError))
	pb.RegisterMessageServiceServer(p.rpc, messagesrpc.NewService(
		p.broker, p.router, p.admission, p.inbox, p.conversations, p.deadletters, p.offers, p.catalog, p.agents.Presence,
		p.messagetrace, p.rpc.ItemError, log.Named("broker")))
	pb.RegisterSessionServiceServer(p.rpc,
		sessionService{sessions.NewService(p.sessions), retention.NewSessionService(p.retention)})
	pb.RegisterStateServiceServer(p.rpc, state.NewService(p.state))
	pb.RegisterTaskServiceServer(p.rpc, p.tasks)
	pb.RegisterTokenServiceServer(p.rpc, locks.NewTokenService(p.locks))
	pb.RegisterVoteServiceServer(p.rpc, p.votes)
}
