package retention

import (
	"context"
	"path/filepath"

	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
)

// SessionService is the part of the SessionService of the API that exports and deletes.
type SessionService struct{ keeper *Keeper }

// NewSessionService returns the service of a keeper.
func NewSessionService(k *Keeper) *SessionService { return &SessionService{k} }

// ExportSession implements pb.SessionServiceServer.
func (s *SessionService) ExportSession(in *pb.ExportSessionRequest, stream grpc.ServerStreamingServer[pb.ExportSessionResponse]) error {
	name := in.GetName()
	if name == "" {
		name = identity.FromContext(stream.Context()).Session
	}
	_, err := s.keeper.Export(stream.Context(), name, sending{stream})
	return err
}

// sending is a sink that sends what it gets.
type sending struct {
	stream grpc.ServerStreamingServer[pb.ExportSessionResponse]
}

// Piece implements Sink.
func (s sending) Piece(file string, data []byte) error {
	return s.stream.Send(&pb.ExportSessionResponse{File: file, Data: data})
}

// DeleteSession implements pb.SessionServiceServer.
func (s *SessionService) DeleteSession(ctx context.Context, in *pb.DeleteSessionRequest) (*pb.DeleteSessionResponse, error) {
	req, err := idempotency.Of(ctx, "DeleteSession", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	d, err := s.keeper.Delete(ctx, identity.FromContext(ctx), req, in.GetName())
	if err != nil {
		return nil, err
	}
	return &pb.DeleteSessionResponse{Archive: filepath.ToSlash(d.Archive), Revision: d.Revision}, nil
}

// PruneService is the part of the AdminService of the API that prunes.
type PruneService struct{ keeper *Keeper }

// NewPruneService returns the service of a keeper.
func NewPruneService(k *Keeper) *PruneService { return &PruneService{k} }

// PruneData implements pb.AdminServiceServer.
func (s *PruneService) PruneData(ctx context.Context, in *pb.PruneDataRequest) (*pb.PruneDataResponse, error) {
	selected := Selection{
		OlderThan: in.GetOlderThan().AsDuration(), Session: in.GetSession(), DryRun: in.GetDryRun(),
	}
	kinds := in.GetKinds()
	if len(kinds) == 0 {
		kinds = []pb.DataKind{pb.DataKind_DATA_KIND_MESSAGES, pb.DataKind_DATA_KIND_EVENTS, pb.DataKind_DATA_KIND_WORK}
	}
	for _, kind := range kinds {
		switch kind {
		case pb.DataKind_DATA_KIND_MESSAGES:
			selected.Messages = true
		case pb.DataKind_DATA_KIND_DEAD_LETTERS:
			selected.DeadLetters = true
		case pb.DataKind_DATA_KIND_EVENTS:
			selected.Events = true
		case pb.DataKind_DATA_KIND_WORK:
			selected.Work = true
		}
	}
	out, err := s.keeper.Prune(ctx, identity.FromContext(ctx), selected)
	if err != nil {
		return nil, err
	}
	return &pb.PruneDataResponse{
		Messages: out.Messages, DeadLetters: out.DeadLetters, Events: out.Events, Work: out.Work,
		FreeBytes: out.FreeBytes, Revision: out.Revision,
	}, nil
}
