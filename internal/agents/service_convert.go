package agents

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/work"
)

func agentProto(a Agent) *pb.Agent {
	out := &pb.Agent{
		Name:         a.Name,
		Role:         a.Role,
		Capabilities: a.Capabilities,
		Instance:     a.Instance,
		Worktree:     a.Worktree,
		Labels:       a.Labels,
		Incarnation:  a.Incarnation,
		Lease:        durationpb.New(a.Lease),
		Status:       pb.AgentStatus(a.Status),
		Activity:     a.Activity,
		TaskId:       a.TaskID,
		Progress:     a.Progress,
		RegisteredAt: timestamppb.New(a.RegisteredAt),
		LastSeen:     timestamppb.New(a.LastSeen),
		AsleepSince:  stamp(a.AsleepSince),
		Revision:     a.Revision,
		Degraded:     a.Degraded,
		Halted:       a.Halted,
		Health:       pb.Health(a.Health),
		FailedAt:     stamp(a.FailedAt),
		StoppedAt:    stamp(a.StoppedAt),
		State:        a.State(),
		LastTool:     a.LastTool,
		LastFile:     a.LastFile,
		DisplayName:  a.DisplayName,
		Description:  a.Purpose,
		StatusReason: a.Reason,
		CompletedAt:  stamp(a.CompletedAt),
		Attention:    pb.Attention(a.Attention),
		Messages:     &pb.MessageCounts{Sent: a.Sent, Received: a.Received, Processed: a.Processed},
	}
	if h := a.Presence(); h != (Harness{}) {
		out.Harness = &pb.Harness{
			Session: h.Session, Program: h.Program, State: pb.HarnessState(h.State), Tool: h.Tool,
			Listening: pb.OfferWay(pb.OfferWay_value[wayPrefix+strings.ToUpper(h.Listening)]), Since: stamp(h.Since),
		}
	}
	if n := a.Counters; n != (Counters{}) {
		out.Counters = &pb.Counters{
			Turns: &n.Turns, ModelTokens: &n.ModelTokens, Files: &n.Files, ToolCalls: &n.ToolCalls, Errors: &n.Errors,
		}
	}
	return out
}

// stamp leaves out a time that is not set.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// wayPrefix is what the ways of offers begin with in the API.
const wayPrefix = "OFFER_WAY_"

// harnessOf returns what is reported of the session of a coding agent; nil if nothing is.
func harnessOf(in *pb.Harness) *Harness {
	if in == nil {
		return nil
	}
	h := &Harness{Session: in.GetSession(), Program: in.GetProgram(), State: HarnessState(in.GetState()), Tool: in.GetTool()}
	if in.GetListening() != 0 {
		h.Listening = strings.ToLower(strings.TrimPrefix(in.GetListening().String(), wayPrefix))
	}
	return h
}

func lossProtos(losses []directory.Loss) []*pb.Loss {
	out := make([]*pb.Loss, len(losses))
	for i, l := range losses {
		out[i] = &pb.Loss{Kind: pb.LossKind(l.Kind), Name: l.Name, Revision: l.Revision, LostAt: stamp(l.At)}
	}
	return out
}

func checkpointProtos(list []Checkpoint) []*pb.Checkpoint {
	out := make([]*pb.Checkpoint, len(list))
	for i, c := range list {
		out[i] = &pb.Checkpoint{
			Kind: pb.CheckpointKind(c.Kind), Reference: c.Reference, Data: c.Data, SavedAt: stamp(c.SavedAt), Revision: c.Revision,
		}
	}
	return out
}

func holdingsProto(session string, h *work.Holdings) *pb.Holdings {
	out := &pb.Holdings{Asked: questionProtos(h.Asked), ToAnswer: questionProtos(h.ToAnswer)}
	for _, c := range h.Claims {
		out.Claims = append(out.Claims, &pb.OpenClaim{
			ClaimId: c.ClaimID, Consumer: c.Consumer, MessageId: c.MessageID, Revision: c.Revision, Type: c.Type, Subject: c.Subject,
			Sender: c.Sender, Attempt: int32(c.Attempt), ClaimedAt: stamp(c.ClaimedAt),
		})
	}
	for _, l := range h.Locks {
		out.Locks = append(out.Locks, &pb.HeldLock{
			Paths: l.Paths, Holder: l.Holder, Fence: l.Fence, Shared: l.Shared, HeldUntil: stamp(l.HeldUntil),
		})
	}
	for _, t := range h.Tokens {
		out.Tokens = append(out.Tokens, &pb.HeldToken{
			Type: t.Type, Scope: t.Scope, Holder: t.Holder, Fence: t.Fence, HeldUntil: stamp(t.HeldUntil),
		})
	}
	for _, t := range h.Tickets {
		out.Tickets = append(out.Tickets, &pb.WaitingTicket{
			Ticket: t.Ticket, Resources: t.Resources, Token: t.Token, Position: int32(t.Position), CreatedAt: stamp(t.CreatedAt),
		})
	}
	for i := range h.Work {
		out.Work = append(out.Work, itemProto(&h.Work[i]))
	}
	return out
}

func itemProto(it *work.Item) *pb.WorkItem {
	return &pb.WorkItem{
		Kind: it.Kind, Id: it.ID, Revision: it.Revision, Title: it.Title, State: it.State,
		Relation: pb.WorkRelation(it.Relation), Other: it.Other, Due: stamp(it.Due),
		Calls: calls.Protos(it.Calls),
	}
}

func questionProtos(list []work.OpenQuestion) []*pb.OpenQuestion {
	var out []*pb.OpenQuestion
	for _, q := range list {
		out = append(out, &pb.OpenQuestion{
			Id: q.ID, Revision: q.Revision, Sender: q.Sender, Subject: q.Subject, Deadline: stamp(q.Deadline), Overdue: q.Overdue,
		})
	}
	return out
}
