package mcp

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/internal/mcp"
)

// Patience is how long a call waits for a broker that restarts.
const Patience = 20 * time.Second

// memberCalls makes the calls of the tools as a member. A call to a broker that restarts is made again, with the same
// request id, so a change is made once. It implements mcp.Agent.
type memberCalls struct{ *member }

// Join implements mcp.Agent.
func (m memberCalls) Join(ctx context.Context, session string) (string, error) {
	m.follow(ctx, session)
	var name string
	err := m.do(ctx, func(broker *client.Client) error {
		name = broker.Identity().Agent
		return nil
	})
	if err != nil {
		_, text := m.c.Explain(err)
		return "", errors.New(text)
	}
	return name, nil
}

// News implements mcp.Agent.
func (m memberCalls) News() string { return m.news() }

// Gone implements mcp.Agent. The context of a call says it.
func (m memberCalls) Gone() bool { return false }

// Left implements mcp.Agent.
func (m memberCalls) Left(left bool) {
	if left {
		m.leave()
	} else {
		m.rejoin()
	}
}

// Invoke implements grpc.ClientConnInterface.
func (m memberCalls) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if span := mcp.TraceParent(ctx); span != "" {
		ctx = client.ContextWithTraceParent(ctx, span)
	}
	const pause = 200 * time.Millisecond
	began, patience := time.Now(), max(Patience, waitOf(args))
	if end, ok := ctx.Deadline(); ok && time.Until(end) < time.Second {
		patience = 0 // of a hook, which must not wait for a broker that is away
	}
	for {
		err := m.do(ctx, func(broker *client.Client) error {
			return broker.Conn().Invoke(ctx, method, waitsLess(args, time.Since(began)), reply, opts...)
		})
		if err == nil || !unreachable(err) || time.Since(began) > patience {
			return err
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return err
		}
	}
}

// unreachable reports whether a call failed because the broker is away, perhaps for a restart.
func unreachable(err error) bool {
	if errors.As(err, new(outError)) {
		return false
	}
	_, answered := status.FromError(err)
	return !answered || status.Code(err) == codes.Unavailable
}

// NewStream implements grpc.ClientConnInterface.
func (m memberCalls) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (stream grpc.ClientStream, err error) {
	err = m.do(ctx, func(broker *client.Client) error {
		stream, err = broker.Conn().NewStream(ctx, desc, method, opts...)
		return err
	})
	return stream, err
}

// waitOf returns how long a request waits; 0 if it has no wait.
func waitOf(request any) time.Duration {
	if r, ok := request.(interface{ GetWait() *durationpb.Duration }); ok {
		return r.GetWait().AsDuration()
	}
	return 0
}

// waitsLess returns a request that waits for so much less, but still waits if it did before.
func waitsLess(request any, less time.Duration) any {
	wait := waitOf(request)
	if wait == 0 || less < time.Second {
		return request
	}
	m := proto.Clone(request.(proto.Message)) // only messages of the API wait
	left := durationpb.New(max(wait-less, time.Millisecond))
	fields := m.ProtoReflect().Descriptor().Fields()
	m.ProtoReflect().Set(fields.ByName("wait"), protoreflect.ValueOfMessage(left.ProtoReflect()))
	return m
}
