package retention

import (
	"context"
	"path/filepath"

	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/caller"
	"brokerd/internal/once"
	"brokerd/internal/valid"
)

// SessionService is the part of the SessionService of the API that exports and deletes.
type SessionService struct{ keeper *Keeper }

// NewSessionService returns the service of a keeper.
func NewSessionService(k *Keeper) *SessionService { return &SessionService{k} }

// ExportSession implements pb.SessionServiceServer.
func (s *SessionService) ExportSession(in *pb.ExportSessionRequest, stream grpc.ServerStreamingServer[pb.ExportSessionResponse]) error {
	name := in.GetName()
	if name == "" {
		name = caller.FromContext(stream.Context()).Session
	}
	var c valid.Check
	c.Name("name", name)
	if err := c.Err(); err != nil {
		return err
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
	var c valid.Check
	c.Name("name", in.GetName())
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := once.Of(ctx, "DeleteSession", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	d, err := s.keeper.Delete(ctx, caller.FromContext(ctx), req, in.GetName())
	if err != nil {
		return nil, err
	}
	return &pb.DeleteSessionResponse{Archive: filepath.ToSlash(d.Archive), Revision: d.Revision}, nil
}
