package app

import (
	"context"

	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/admin"
	"brokerd/internal/backup"
	"brokerd/internal/drain"
	"brokerd/internal/overview"
	"brokerd/internal/retention"
	"brokerd/internal/rpc"
	"brokerd/internal/sessions"
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
	*doorman
}

// A doorman opens a TCP address while the daemon runs.
type doorman struct {
	app    *App
	server *rpc.Server
}

// OpenLoopback implements pb.AdminServiceServer.
func (d *doorman) OpenLoopback(context.Context, *pb.OpenLoopbackRequest) (*pb.OpenLoopbackResponse, error) {
	address, opened, err := d.app.openLoopback(d.server)
	if err != nil {
		return nil, err
	}
	return &pb.OpenLoopbackResponse{Address: address, Opened: opened}, nil
}

// services are all services of the API.
type services struct {
	admin     pb.AdminServiceServer
	agents    pb.AgentServiceServer
	blockers  pb.BlockerServiceServer
	catalog   pb.CatalogServiceServer
	auth      pb.CredentialServiceServer
	handoffs  pb.HandoffServiceServer
	channels  pb.ChannelServiceServer
	artifacts pb.ArtifactServiceServer
	decisions pb.DecisionServiceServer
	events    pb.EventServiceServer
	locks     pb.LockServiceServer
	messages  pb.MessageServiceServer
	sessions  pb.SessionServiceServer
	state     pb.StateServiceServer
	tasks     pb.TaskServiceServer
	tokens    pb.TokenServiceServer
	votes     pb.VoteServiceServer
}

// register adds the services to the server.
func register(server grpc.ServiceRegistrar, s services) {
	pb.RegisterAdminServiceServer(server, s.admin)
	pb.RegisterAgentServiceServer(server, s.agents)
	pb.RegisterArtifactServiceServer(server, s.artifacts)
	pb.RegisterBlockerServiceServer(server, s.blockers)
	pb.RegisterCatalogServiceServer(server, s.catalog)
	pb.RegisterCredentialServiceServer(server, s.auth)
	pb.RegisterHandoffServiceServer(server, s.handoffs)
	pb.RegisterChannelServiceServer(server, s.channels)
	pb.RegisterDecisionServiceServer(server, s.decisions)
	pb.RegisterEventServiceServer(server, s.events)
	pb.RegisterLockServiceServer(server, s.locks)
	pb.RegisterMessageServiceServer(server, s.messages)
	pb.RegisterSessionServiceServer(server, s.sessions)
	pb.RegisterStateServiceServer(server, s.state)
	pb.RegisterTaskServiceServer(server, s.tasks)
	pb.RegisterTokenServiceServer(server, s.tokens)
	pb.RegisterVoteServiceServer(server, s.votes)
}
