package decisions

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/validate"
)

// contentOf reads and checks the content of a decision.
func contentOf(c *validate.Check, in *pb.DecisionContent) Content {
	out := Content{Body: in.GetBody(), Payload: in.GetPayload(), Artifacts: in.GetArtifacts()}
	c.Text("content.body", out.Body, maxText)
	c.JSON("content.payload", out.Payload, maxText)
	c.Count("content.files", len(in.GetFiles()), maxItems)
	c.Count("content.artifacts", len(in.GetArtifacts()), maxItems)
	total := len(out.Body) + len(out.Payload)
	for i, f := range in.GetFiles() {
		field := fmt.Sprintf("content.files[%d]", i)
		if f.GetPath() == "" {
			c.Fail(field+".path", "is empty")
		}
		c.Line(field+".path", f.GetPath(), validate.MaxPath)
		c.Between(field+".line", int64(f.GetLine()), 0, 1<<31-1)
		total += len(f.GetPath())
		out.Files = append(out.Files, File{Path: f.GetPath(), Line: int(f.GetLine())})
	}
	for i, name := range out.Artifacts {
		c.Line(fmt.Sprintf("content.artifacts[%d]", i), name, validate.MaxPath)
		total += len(name)
	}
	if total > maxContent {
		c.Fail("content", "has %d bytes; at most %d are allowed", total, maxContent)
	}
	return out
}

// feedbackOf reads and checks the feedback of a verdict.
func feedbackOf(c *validate.Check, in []*pb.Feedback) (list []Feedback) {
	c.Count("feedback", len(in), maxFeedback)
	total := 0
	for i, f := range in {
		field := fmt.Sprintf("feedback[%d]", i)
		severity := Severity(f.GetSeverity())
		if severity == 0 {
			severity = Major
		}
		if severity < Note || severity > Blocker {
			c.Fail(field+".severity", "%d is no severity of feedback", f.GetSeverity())
			severity = Major
		}
		if f.GetText() == "" {
			c.Fail(field+".text", "is empty")
		}
		c.Text(field+".text", f.GetText(), maxRemark)
		c.Line(field+".file", f.GetFile(), validate.MaxPath)
		c.Between(field+".line", int64(f.GetLine()), 0, 1<<31-1)
		total += len(f.GetText()) + len(f.GetFile())
		list = append(list, Feedback{Severity: severity, File: f.GetFile(), Line: int(f.GetLine()), Text: f.GetText()})
	}
	if total > maxText {
		c.Fail("feedback", "has %d bytes; at most %d are allowed", total, maxText)
	}
	return list
}

// decisionProto converts a decision; whole includes its content.
func decisionProto(d *Decision, whole bool) *pb.Decision {
	out := &pb.Decision{
		Id: d.Name(), Kind: pb.DecisionKind(d.Kind), State: pb.DecisionState(d.State), OpenedBy: d.OpenedBy, Agent: d.Agent, Role: d.Role,
		EscalatedTo: d.EscalatedTo, Title: d.Title, Scope: d.Scope, TaskId: d.Task, ThreadId: d.Thread, Verdicts: d.Verdicts,
		Round: int32(d.Round), MaxRounds: int32(d.MaxRounds), Deadline: stamp(d.Deadline), PassToken: d.PassToken, Verdict: d.Verdict,
		Note: d.Note, OpenedAt: stamp(d.OpenedAt), ChangedAt: stamp(d.ChangedAt), Revision: d.Revision,
		MessageType: d.MessageType, OutcomeType: d.OutcomeType,
	}
	if whole {
		out.Content = &pb.DecisionContent{Body: d.Content.Body, Payload: d.Content.Payload, Artifacts: d.Content.Artifacts}
		for _, f := range d.Content.Files {
			out.Content.Files = append(out.Content.Files, &pb.FileReference{Path: f.Path, Line: int32(f.Line)})
		}
	}
	for i := range d.Rounds {
		v := &d.Rounds[i]
		verdict := &pb.Verdict{
			Round: int32(v.Round), Verdict: v.Verdict, DecidedBy: v.By, DecidedAt: stamp(v.At), Reason: v.Reason, Until: stamp(v.Until),
			Escalated: v.Escalated, Revision: v.Revision,
		}
		for _, f := range v.Feedback {
			verdict.Feedback = append(verdict.Feedback,
				&pb.Feedback{Severity: pb.FeedbackSeverity(f.Severity), File: f.File, Line: int32(f.Line), Text: f.Text})
		}
		out.Rounds = append(out.Rounds, verdict)
	}
	return out
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
