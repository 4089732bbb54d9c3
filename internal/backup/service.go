package backup

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/identity"
)

// AdminService is the part of the AdminService of the API that makes backups.
type AdminService struct{ maker *Maker }

// NewAdminService returns the service of a maker.
func NewAdminService(m *Maker) *AdminService { return &AdminService{m} }

// BackupDatabase implements pb.AdminServiceServer.
func (s *AdminService) BackupDatabase(_ *pb.BackupDatabaseRequest, stream grpc.ServerStreamingServer[pb.BackupDatabaseResponse]) error {
	ctx := stream.Context()
	done, err := s.maker.Backup(ctx, identity.FromContext(ctx), sending{stream})
	if err != nil {
		return err
	}
	return stream.Send(&pb.BackupDatabaseResponse{Frame: &pb.BackupDatabaseResponse_Backup{Backup: &pb.Backup{
		Size: done.Size, Sha256: done.SHA256, Revision: done.Revision, CreatedAt: timestamppb.New(done.CreatedAt),
		Sessions: done.Sessions, Messages: done.Messages, Events: done.Events,
		Contents: int64(done.Contents), ContentBytes: done.ContentBytes,
	}}})
}

// sending is a sink that sends what it receives.
type sending struct {
	stream grpc.ServerStreamingServer[pb.BackupDatabaseResponse]
}

// Progress implements Sink.
func (s sending) Progress(p Progress) error {
	return s.progress(&pb.BackupProgress{CopiedBytes: p.Copied, DatabaseBytes: p.Total})
}

// Begin implements Sink.
func (s sending) Begin(size int64) error { return s.progress(&pb.BackupProgress{FileBytes: size}) }

func (s sending) progress(p *pb.BackupProgress) error {
	return s.stream.Send(&pb.BackupDatabaseResponse{Frame: &pb.BackupDatabaseResponse_Progress{Progress: p}})
}

// Write implements Sink.
func (s sending) Write(p []byte) (int, error) {
	if err := s.stream.Send(&pb.BackupDatabaseResponse{Frame: &pb.BackupDatabaseResponse_Chunk{Chunk: p}}); err != nil {
		return 0, err
	}
	return len(p), nil
}
