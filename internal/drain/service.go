package drain

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
)

// Server is the part of the AdminService of the API that drains the broker.
type Server struct{ drains *Switch }

// NewServer returns the server of a switch.
func NewServer(s *Switch) *Server { return &Server{s} }

// Drain implements pb.AdminServiceServer.
func (s *Server) Drain(ctx context.Context, in *pb.DrainRequest) (*pb.DrainResponse, error) {
	wait := in.GetWait().AsDuration()
	if in.GetResume() && wait > 0 {
		return nil, fault.Field("wait", "cannot be used together with resume")
	}
	var r Report
	var err error
	if in.GetResume() {
		r, err = s.drains.Resume(ctx, identity.FromContext(ctx))
	} else {
		r, err = s.drains.Drain(ctx, identity.FromContext(ctx), wait)
	}
	if err != nil {
		return nil, err
	}
	out := &pb.DrainResponse{Revision: r.Revision, Messages: r.Messages, Tasks: r.Tasks}
	if !r.Since.IsZero() {
		out.DrainingSince = timestamppb.New(r.Since)
	}
	for _, h := range r.Holders {
		out.Holders = append(out.Holders, &pb.ClaimHolder{
			Session: h.Session, Agent: h.Agent, Messages: h.Messages, Tasks: h.Tasks, Since: timestamppb.New(h.Since),
		})
	}
	return out, nil
}
