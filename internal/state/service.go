package state

import (
	"context"
	"time"

	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

// Limits of a request.
const (
	MaxValue    = 1 << 20   // bytes of a value
	maxKey      = 512       // bytes
	maxSection  = 256 << 10 // bytes of a document's entry
	MaxChanges  = 1000      // of a transaction; and compares
	maxTogether = 3 << 20   // bytes of names and values of a transaction
	shortestTTL = time.Second
	longestTTL  = 365 * 24 * time.Hour
)

// Names of the lists that page tokens belong to.
const (
	keyList     = "ListState"
	historyList = "ListStateHistory"
)

// Service is the StateService of the API.
type Service struct {
	pb.UnimplementedStateServiceServer
	keys *Keys
}

// NewService returns the service of the keys.
func NewService(k *Keys) *Service { return &Service{keys: k} }

// GetState implements pb.StateServiceServer.
func (s *Service) GetState(ctx context.Context, in *pb.GetStateRequest) (*pb.GetStateResponse, error) {
	n := nameOf(in)
	f, err := s.keys.Get(ctx, identity.FromContext(ctx), n, in.GetAtRevision(), int(in.GetAfterEntry()))
	if err != nil {
		return nil, err
	}
	out := &pb.GetStateResponse{Entry: entryProto(&f.Entry, true), Revision: f.Revision}
	if len(f.Sections) > 0 {
		out.LastEntry = int32(f.Sections[len(f.Sections)-1].Number)
	}
	if in.GetMarkdown() {
		out.Markdown = Markdown(n, f.Sections)
		return out, nil
	}
	for i := range f.Sections {
		out.Entries = append(out.Entries, sectionProto(&f.Sections[i]))
	}
	return out, nil
}

// PutState implements pb.StateServiceServer.
func (s *Service) PutState(ctx context.Context, in *pb.PutStateRequest) (*pb.PutStateResponse, error) {
	var c validate.Check
	change := putOf(&c, "value", in)
	out, err := s.change(ctx, &c, "PutState", in, Put, nil, []Change{change})
	if err != nil {
		return nil, err
	}
	entry := entryProto(&out.Entries[0], false)
	entry.Value = in.GetValue() // a repeated request has the same value
	return &pb.PutStateResponse{Entry: entry}, nil
}

// AppendState implements pb.StateServiceServer.
func (s *Service) AppendState(ctx context.Context, in *pb.AppendStateRequest) (*pb.AppendStateResponse, error) {
	req, err := idempotency.Of(ctx, "AppendState", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	e, err := s.keys.Append(ctx, identity.FromContext(ctx), req, nameOf(in), in.GetText(), in.TaskId)
	if err != nil {
		return nil, err
	}
	return &pb.AppendStateResponse{Entry: entryProto(&e, false), Number: int32(e.Entries)}, nil
}

// DeleteState implements pb.StateServiceServer.
func (s *Service) DeleteState(ctx context.Context, in *pb.DeleteStateRequest) (*pb.DeleteStateResponse, error) {
	var c validate.Check
	out, err := s.change(ctx, &c, "DeleteState", in, Deleted, nil, []Change{deletionOf(in)})
	if err != nil {
		return nil, err
	}
	return &pb.DeleteStateResponse{Deleted: out.Revision > 0, Revision: out.Revision}, nil
}

// TransactState implements pb.StateServiceServer.
func (s *Service) TransactState(ctx context.Context, in *pb.TransactStateRequest) (*pb.TransactStateResponse, error) {
	var c validate.Check
	compares, changes := transactionOf(&c, in)
	out, err := s.change(ctx, &c, "TransactState", in, transacted, compares, changes)
	if err != nil {
		return nil, err
	}
	answer := &pb.TransactStateResponse{Revision: out.Revision}
	for i := range out.Entries {
		answer.Entries = append(answer.Entries, entryProto(&out.Entries[i], false))
	}
	return answer, nil
}

// change makes changes that have been read from a request of a change's RPC.
func (s *Service) change(ctx context.Context, c *validate.Check, rpc string, in request, kind string, compares []Compare, changes []Change) (Outcome, error) {
	if err := c.Err(); err != nil {
		return Outcome{}, err
	}
	req, err := idempotency.Of(ctx, rpc, in.GetRequestId(), in)
	if err != nil {
		return Outcome{}, err
	}
	return s.keys.Change(ctx, identity.FromContext(ctx), req, kind, compares, changes)
}

// ListState implements pb.StateServiceServer.
func (s *Service) ListState(ctx context.Context, in *pb.ListStateRequest) (*pb.ListStateResponse, error) {
	sel := Selection{
		Namespace: in.GetNamespace(), Prefix: in.GetKeyPrefix(), Owner: in.GetOwner(), TaskID: in.GetTaskId(), Values: in.GetValues(),
		Limit: page.Size(in.GetPageSize()),
	}
	if err := page.Parse(keyList, in.GetPageToken(), &sel.From); err != nil {
		return nil, err
	}
	p, err := s.keys.List(ctx, identity.FromContext(ctx), sel)
	if err != nil {
		return nil, err
	}
	out := &pb.ListStateResponse{Entries: entriesProto(p.Entries, sel.Values), Revision: p.Revision}
	if p.More {
		next := p.Entries[len(p.Entries)-1].Name
		next.Key += "\x01" // the least that comes after it: no text has a zero byte
		out.NextPageToken = page.Token(keyList, next)
	}
	return out, nil
}

// ListStateHistory implements pb.StateServiceServer.
func (s *Service) ListStateHistory(ctx context.Context, in *pb.ListStateHistoryRequest) (*pb.ListStateHistoryResponse, error) {
	var before int64
	if err := page.Parse(historyList, in.GetPageToken(), &before); err != nil {
		return nil, err
	}
	p, err := s.keys.History(ctx, identity.FromContext(ctx), nameOf(in), before, page.Size(in.GetPageSize()))
	if err != nil {
		return nil, err
	}
	out := &pb.ListStateHistoryResponse{Versions: entriesProto(p.Entries, true), Revision: p.Revision}
	if p.More {
		out.NextPageToken = page.Token(historyList, p.Next)
	}
	return out, nil
}

// WatchState implements pb.StateServiceServer.
func (s *Service) WatchState(in *pb.WatchStateRequest, stream grpc.ServerStreamingServer[pb.WatchStateResponse]) error {
	w := Watch{Namespace: in.GetNamespace(), Prefix: in.GetKeyPrefix(), After: in.AfterRevision}
	return s.keys.Watch(stream.Context(), identity.FromContext(stream.Context()), w, func(f Frame) error {
		return stream.Send(&pb.WatchStateResponse{Changes: entriesProto(f.Changes, true), Revision: f.Revision})
	})
}
