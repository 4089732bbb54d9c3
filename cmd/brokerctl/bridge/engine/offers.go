package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// Types of messages that are plans and handoffs, as mailfile.Letters returns them.
var (
	planTypes    = []string{"plansubmission", "plansubmitted", "plansubmit", "planproposal", "submitplan"}
	handoffTypes = []string{"handoffrequest", "requesthandoff", "handoff", "handoffinitiated", "taskhandoff"}
)

func isPlan(m *pb.Message) bool { return slices.Contains(planTypes, mailfile.Letters(m.GetType())) }

// offers reports whether a message is a plan or a handoff.
func offers(m *pb.Message) bool {
	return isPlan(m) || slices.Contains(handoffTypes, mailfile.Letters(m.GetType()))
}

// offer returns the act for a plan or a handoff to one agent or role that is not in the folder; nil for others, which
// readers of the folder's files get as mail. A plan for which the recipient wants another round is that round.
func (c *calls) offer(ctx context.Context, sender string, m *pb.Message) (*act, error) {
	agent, role := m.GetTarget().GetAgent(), m.GetTarget().GetRole()
	if agent == "" && role == "" || c.roster.Owns(agent) || titleOf(m) == "" {
		return nil, nil
	}
	if !isPlan(m) {
		return &act{Do: "hand over"}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	out, err := c.broker.Decisions().ListDecisions(ctx, &pb.ListDecisionsRequest{Opener: sender, PageSize: 1000,
		Kind: pb.DecisionKind_DECISION_KIND_PLAN, States: []pb.DecisionState{pb.DecisionState_DECISION_STATE_REVISING}})
	if err != nil {
		return nil, err
	}
	revised := only(out.GetDecisions(), func(d *pb.Decision) bool { return d.GetAgent() == agent && d.GetRole() == role })
	if revised != nil {
		return &act{Do: "resubmit", ID: revised.GetId(), Round: revised.GetRound()}, nil
	}
	return &act{Do: "submit"}, nil
}

// titleOf returns the subject of a message, or the first line of its text.
func titleOf(m *pb.Message) string {
	first, _, _ := strings.Cut(strings.TrimSpace(m.GetBody()), "\n")
	return mailfile.OneLine(strings.TrimPrefix(cmp.Or(m.GetSubject(), first), "Handoff ready: "), 512)
}

// planOf returns the call that opens the decision about a plan.
func planOf(id string, m *pb.Message) *pb.OpenDecisionRequest {
	labels, _, payload := mailfile.Kept(m)
	delete(labels, "original_id")
	delete(labels, "original_timestamp")
	if text, err := json.Marshal(labels); err == nil && payload == "" && len(labels) > 0 {
		payload = string(text) // a decision has no labels
	}
	in := &pb.OpenDecisionRequest{RequestId: id, Kind: pb.DecisionKind_DECISION_KIND_PLAN,
		Title: titleOf(m), TaskId: m.GetTaskId(),
		Content: &pb.DecisionContent{Body: m.GetBody(), Payload: payload, Files: m.GetFiles()}}
	if role := m.GetTarget().GetRole(); role != "" {
		in.To = &pb.OpenDecisionRequest_Role{Role: role}
	} else {
		in.To = &pb.OpenDecisionRequest_Agent{Agent: m.GetTarget().GetAgent()}
	}
	return in
}

// handoffOf returns the call that creates a handoff. If handoff_dir names a folder with HANDOFF.md and artifacts/,
// these are its background and its artifacts.
func (c *calls) handoffOf(
	ctx context.Context, id string, m *pb.Message, facts map[string]string,
) (*pb.CreateHandoffRequest, error) {
	in := &pb.CreateHandoffRequest{RequestId: id, Title: titleOf(m), TaskId: m.GetTaskId(),
		ToAgent: m.GetTarget().GetAgent(), ToRole: m.GetTarget().GetRole(),
		Content: &pb.HandoffContent{Background: m.GetBody()}}
	dir := strings.TrimPrefix(facts["handoff_dir"], AgentRoot+"/")
	if !fs.ValidPath(dir) {
		return in, nil
	}
	text, err := c.folder.Read(path.Join(dir, "HANDOFF.md"))
	switch {
	case err == nil && len(text) <= maxBackground && utf8.Valid(text):
		in.Content.Background = string(text)
	case err != nil && !absent(err):
		return nil, err
	}
	names, err := c.folder.List(path.Join(dir, "artifacts"))
	if err != nil {
		if absent(err) {
			return in, nil
		}
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		info, err := c.folder.Lstat(path.Join(dir, "artifacts", name))
		return !utf8.ValidString(name) || err != nil || !info.Mode().IsRegular()
	})
	for _, name := range names[:min(len(names), maxHandoffArtifacts)] {
		full := path.Join(dir, "artifacts", name)
		err := Upload(ctx, c.folder, c.broker, &pb.ArtifactHeader{Name: full})
		if err != nil && absent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		in.Content.Artifacts = append(in.Content.Artifacts, full)
	}
	return in, nil
}

// absent reports whether an error of a file or folder that a message names says that the bridge cannot read it: it is
// missing, it is something else, or its name is impossible. A fault of the disk or of the system is none, because it
// passes, and neither is an answer of the broker.
func absent(err error) bool {
	for _, fault := range []error{syscall.EIO, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN,
		syscall.EINTR, syscall.ESTALE, syscall.ETIMEDOUT} {
		if errors.Is(err, fault) {
			return false
		}
	}
	var local *fs.PathError
	return mailfile.Rejected(err) || errors.As(err, &local)
}

// AgentRoot is the folder of the format agent-messages. Its agents name their files from the folder around it.
const AgentRoot = ".agent-messages"

// The broker's limits for a handoff.
const (
	maxBackground       = 64 << 10
	maxHandoffArtifacts = 100
)

// ignoreMissing returns nil for the error of a call about something that the broker does not have.
func ignoreMissing(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}
