package histories_test

import (
	"context"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// A lockStream acquires and releases over one Lock stream, and over the next when that has broken. One call at a time.
type lockStream struct {
	pb.LockServiceClient
	stream pb.LockService_LockClient // nil if there is none
	number int64
}

// AcquireLocks implements pb.LockServiceClient.
func (l *lockStream) AcquireLocks(ctx context.Context, r *pb.AcquireLocksRequest, _ ...grpc.CallOption) (*pb.AcquireLocksResponse, error) {
	out, err := l.ask(ctx, &pb.LockRequest{Request: &pb.LockRequest_Acquire{Acquire: r}})
	return out.GetAcquired(), err
}

// ReleaseLocks implements pb.LockServiceClient.
func (l *lockStream) ReleaseLocks(ctx context.Context, r *pb.ReleaseLocksRequest, _ ...grpc.CallOption) (*pb.ReleaseLocksResponse, error) {
	out, err := l.ask(ctx, &pb.LockRequest{Request: &pb.LockRequest_Release{Release: r}})
	return out.GetReleased(), err
}

func (l *lockStream) ask(ctx context.Context, r *pb.LockRequest) (*pb.LockResponse, error) {
	if l.stream == nil {
		stream, err := l.Lock(ctx)
		if err != nil {
			return nil, err
		}
		l.stream = stream
	}
	l.number++
	r.Number = l.number
	_ = l.stream.Send(r) // Recv says what was wrong
	out, err := l.stream.Recv()
	if err != nil {
		l.stream = nil
		return nil, err
	}
	e := out.GetError()
	if e == nil {
		return out, nil
	}
	s, err := status.New(codes.Code(e.Code), e.Message).WithDetails(&errdetails.ErrorInfo{Reason: e.Reason, Domain: "brokerd.v1"})
	if err != nil {
		return nil, err
	}
	return nil, s.Err()
}
