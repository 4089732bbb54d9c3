package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"

	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

// downloadChunk is how many bytes of a content one frame has.
const downloadChunk = 64 << 10

// DownloadArtifact implements pb.ArtifactServiceServer.
func (s *Service) DownloadArtifact(
	in *pb.DownloadArtifactRequest, stream grpc.ServerStreamingServer[pb.DownloadArtifactResponse],
) error {
	var c validate.Check
	in.Sha256 = hashOf(&c, "sha256", in.GetSha256())
	switch {
	case in.GetSha256() == "":
		in.Name = pathOf(&c, "name", in.GetName())
	case in.GetName() != "" || in.GetVersion() != 0:
		c.Fail("sha256", "is given together with a name or version; give one of them")
	}
	if err := c.Err(); err != nil {
		return err
	}
	v, content, err := s.openVersion(stream.Context(), in)
	if err != nil {
		return fmt.Errorf("download artifact: %w", err)
	}
	defer func() { _ = content.Close() }() // it is only read
	offset, length := in.GetOffset(), v.Size-in.GetOffset()
	if length < 0 {
		return fault.New(fault.OutOfRange, "OFFSET_TOO_LARGE", "offset is %d, and version %d of %q has %d bytes", offset,
			v.Version, v.Name, v.Size).With("size", strconv.FormatInt(v.Size, 10))
	}
	if in.GetLength() > 0 {
		length = min(length, in.GetLength())
	}
	err = stream.Send(&pb.DownloadArtifactResponse{Frame: &pb.DownloadArtifactResponse_Artifact{Artifact: v}})
	if err != nil {
		return err
	}
	return s.send(io.NewSectionReader(content, offset, length), stream)
}

// send sends a content in pieces. Errors: fault.Unavailable when the artifacts drain; those of the stream.
func (s *Service) send(content io.Reader, stream grpc.ServerStreamingServer[pb.DownloadArtifactResponse]) error {
	for buffer := make([]byte, downloadChunk); ; {
		select {
		case <-s.drained:
			return shuttingDown()
		default:
		}
		n, err := io.ReadFull(content, buffer)
		if n > 0 {
			chunk := &pb.DownloadArtifactResponse_Chunk{Chunk: buffer[:n]}
			if err := stream.Send(&pb.DownloadArtifactResponse{Frame: chunk}); err != nil {
				return err
			}
			s.transferred("download", int64(n))
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if s.Observer != nil {
				s.Observer.Work(noun, "downloaded")
			}
			return nil
		case err != nil:
			return fmt.Errorf("read a content: %w", err)
		}
	}
}

// openVersion finds a version and opens its content. The content of a version that is deleted in between
// may be missing: openVersion then finds out that the version is missing too. Errors: fault.NotFound;
// fault.Precondition (CONTENT_MISSING).
func (s *Service) openVersion(
	ctx context.Context, in *pb.DownloadArtifactRequest,
) (v *pb.ArtifactVersion, _ Content, err error) {
	for range 2 {
		err := s.Read(ctx, func(snap *store.Snapshot, of directory.Session) (err error) {
			v, err = requested(snap, of.ID, in)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		content, err := s.open(ctx, v.Sha256)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return v, content, err
		}
	}
	return nil, nil, fault.New(fault.Precondition, "CONTENT_MISSING",
		"the content of version %d of %q, with the hash %s, is missing: restore it from a backup, or upload the same content "+
			"again", v.Version, v.Name, v.Sha256)
}

// requested finds the version that a request names.
func requested(q store.Querier, session int64, in *pb.DownloadArtifactRequest) (*pb.ArtifactVersion, error) {
	if in.GetSha256() == "" {
		return find(q, session, in.GetName(), in.GetVersion())
	}
	v, found, err := oneVersion(q.Query(selectByContent, session, in.GetSha256()))
	if err == nil && !found {
		err = fault.Missing("artifact", in.GetSha256(), "no artifact of this session has a content with the hash %s",
			in.GetSha256())
	}
	return v, err
}
