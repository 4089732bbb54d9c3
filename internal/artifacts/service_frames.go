package artifacts

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/guard"
)

const (
	// maxChunk is how many bytes of a content one frame of an upload may have.
	maxChunk = 256 << 10
	// idleTime is how long an upload waits for a frame.
	idleTime = time.Minute
)

// frames are the frames of an upload, which a goroutine of its own receives, so that an idle client
// or a broker that stops can end the call. The goroutine ends with the call.
type frames struct {
	service  *Service
	received chan *pb.UploadArtifactRequest
	ended    chan error // has a place for the error that ends the stream; io.EOF for its regular end
}

func newFrames(
	s *Service, stream grpc.ClientStreamingServer[pb.UploadArtifactRequest, pb.UploadArtifactResponse],
) *frames {
	f := &frames{service: s, received: make(chan *pb.UploadArtifactRequest), ended: make(chan error, 1)}
	guard.Go(s.log, func() error {
		for {
			in, err := stream.Recv()
			if err != nil {
				return err
			}
			select {
			case f.received <- in:
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
	}, func(err error) { f.ended <- err })
	return f
}

// next returns the next frame: io.EOF after the last one. Errors: fault.Deadline (TRANSFER_IDLE);
// fault.Unavailable when the artifacts drain; the error of a broken stream.
func (f *frames) next(ctx context.Context) (*pb.UploadArtifactRequest, error) {
	idle := f.service.Clock.NewTimer(idleTime)
	defer idle.Stop()
	select {
	case in := <-f.received:
		return in, nil
	case err := <-f.ended:
		return nil, err
	case <-idle.Chan():
		return nil, fault.New(fault.Deadline, "TRANSFER_IDLE",
			"the upload has received nothing for %s: repeat it from its start", idleTime)
	case <-f.service.drained:
		return nil, shuttingDown()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// copy writes the content to an upload.
func (f *frames) copy(ctx context.Context, to *upload) error {
	for {
		in, err := f.next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		chunk := in.GetChunk()
		switch {
		case in.GetHeader() != nil:
			return fault.Field("header", "is given twice: only the first frame of an upload carries the header")
		case len(chunk) == 0 || len(chunk) > maxChunk:
			return fault.Field("chunk", "has %d bytes; 1 to %d are allowed", len(chunk), maxChunk)
		}
		if err := to.write(chunk); err != nil {
			return err
		}
	}
}
