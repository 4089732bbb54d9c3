package overview

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
)

// WatchService is the part of the AdminService of the API that streams overviews.
type WatchService struct{ hub *Hub }

// NewWatchService returns the service of a hub.
func NewWatchService(h *Hub) *WatchService { return &WatchService{h} }

// WatchOverview implements pb.AdminServiceServer.
func (s *WatchService) WatchOverview(
	in *pb.WatchOverviewRequest, stream grpc.ServerStreamingServer[pb.WatchOverviewResponse],
) error {
	ctx := stream.Context()
	who := identity.FromContext(ctx)
	send := func(f *Frame) error { return stream.SendMsg(f) }
	if !in.GetAllSessions() {
		return s.hub.Watch(ctx, who.Session, in.GetOnce(), send)
	}
	if who.Access != identity.Operator {
		return fault.New(fault.Denied, "OPERATOR_ONLY", "only an operator may watch all sessions")
	}
	return s.hub.WatchAll(ctx, in.GetOnce(), send)
}

// A Frame is a message of the API that has its encoded form already. It is never changed.
type Frame struct {
	*pb.WatchOverviewResponse
	encoded []byte
	content int // bytes of encoded without the time and the revision
}

// newFrame returns the frame of facts. In its encoded form, the time and the revision are last.
func newFrame(f *Facts) (*Frame, error) {
	m := frameProto(f)
	content, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode overview: %w", err)
	}
	at := &pb.WatchOverviewResponse{Time: timestamppb.New(f.Time), Revision: f.Revision}
	encoded, err := proto.MarshalOptions{}.MarshalAppend(content, at)
	if err != nil {
		return nil, fmt.Errorf("encode overview: %w", err)
	}
	m.Time, m.Revision = at.GetTime(), at.GetRevision()
	return &Frame{m, encoded, len(content)}, nil
}

// Encoded returns the frame as all streams send it.
func (f *Frame) Encoded() []byte { return f.encoded }

// same reports whether two frames differ in their time and revision at most.
func (f *Frame) same(other *Frame) bool {
	return bytes.Equal(f.encoded[:f.content], other.encoded[:other.content])
}

func frameProto(f *Facts) *pb.WatchOverviewResponse {
	m := &pb.WatchOverviewResponse{
		Session: f.Session, Closed: f.Closed,
		Totals: &pb.OverviewTotals{
			Waiting: f.Mail.Waiting, Claimed: f.Mail.Claimed, Dead: f.Mail.Dead,
			Agents: int32(f.Crew.Agents), LateAgents: int32(f.Crew.Late), FailedAgents: int32(f.Crew.Failed),
			StoppedAgents: int32(f.Crew.Stopped), OperatorMail: f.Crew.OperatorMail,
			Locks: f.Shared.Locks, TokensHeld: f.Shared.Tokens, Tickets: f.Shared.Tickets, StateKeys: f.Shared.Keys,
			SentRate: f.Rates.Sent, ReceivedRate: f.Rates.Received, ProcessedRate: f.Rates.Processed,
			RevisionRate: f.Rates.Revisions,
		},
	}
	for _, n := range f.Shared.Work {
		m.Totals.Work = append(m.Totals.Work, &pb.WorkCount{Kind: n.Kind, State: n.State, Count: n.N})
	}
	for i := range f.Mailboxes {
		box := &f.Mailboxes[i]
		m.Mailboxes = append(m.Mailboxes, &pb.OverviewMailbox{
			Mailbox: box.Name, Waiting: box.Waiting, Claimed: box.Claimed, Dead: box.Dead, Oldest: stamp(box.Oldest),
		})
	}
	for i := range f.Agents {
		a := &f.Agents[i]
		m.Agents = append(m.Agents, &pb.OverviewAgent{
			Name: a.Name, Role: a.Role, Status: pb.AgentStatus(a.Status), Health: pb.Health(a.Health), State: a.State,
			SilentSince: stamp(a.Silent), Halted: a.Halted, Activity: clip(a.Activity),
			Claims: a.Claims, Locks: a.Locks, Waiting: a.Waiting,
		})
	}
	for i := range f.Events {
		e := &f.Events[i]
		m.Events = append(m.Events, &pb.OverviewEvent{
			Revision: e.Revision, Time: timestamppb.New(e.Time), Severity: pb.Severity(e.Severity), Type: e.Type,
			Source: e.Source, Summary: e.Summary,
		})
	}
	for i := range f.Findings {
		m.Findings = append(m.Findings, f.Findings[i].Proto())
	}
	return m
}

// stamp returns a time; nil for zero.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// clip shortens a text to mostActivity bytes.
func clip(s string) string {
	if len(s) <= mostActivity {
		return s
	}
	return strings.ToValidUTF8(s[:mostActivity-len("…")], "") + "…"
}
