package client

import (
	"context"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Identity is who is calling, and in which session. It goes with every call as metadata.
type Identity struct {
	Session     string // empty = "default"
	Agent       string // empty = "system"
	Incarnation int64  // 0 = the newest
	Fence       int64  // of a lock or token that must be held for the calls to be carried out; 0 = none
}

// identified puts an identity on every call of a connection, and names the broker that does not answer.
type identified struct {
	link  *link
	pairs []string // metadata, key and value in turn
}

func newIdentified(l *link, id Identity) *identified {
	var pairs []string
	if id.Session != "" {
		pairs = append(pairs, "brokerd-session", id.Session)
	}
	if id.Agent != "" {
		pairs = append(pairs, "brokerd-agent", id.Agent)
	}
	if id.Incarnation != 0 {
		pairs = append(pairs, "brokerd-incarnation", strconv.FormatInt(id.Incarnation, 10))
	}
	if id.Fence != 0 {
		pairs = append(pairs, "brokerd-fence", strconv.FormatInt(id.Fence, 10))
	}
	if l.credential != "" {
		pairs = append(pairs, "authorization", "Bearer "+l.credential)
	}
	return &identified{link: l, pairs: pairs}
}

// Invoke implements grpc.ClientConnInterface.
func (i *identified) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx = i.mark(ctx)
	if span := i.link.span(ctx); span != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", span)
	}
	return i.link.patiently(ctx, args, func(args any) error {
		return i.explain(i.link.conn.Invoke(ctx, method, args, reply, opts...))
	})
}

// NewStream implements grpc.ClientConnInterface.
func (i *identified) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := i.link.conn.NewStream(i.mark(ctx), desc, method, opts...)
	return stream, i.explain(err)
}

func (i *identified) mark(ctx context.Context) context.Context {
	if len(i.pairs) == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, i.pairs...)
}

// explain turns gRPC's account of a failed connection into one that helps.
func (i *identified) explain(err error) error {
	if fault := i.link.dialFault.Load(); err != nil && fault != nil && status.Code(err) == codes.Unavailable {
		return i.link.unreachable(fault)
	}
	return err
}
