package supervise

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// longestLine is how many bytes of a line are kept to see whether it is a report; a longer one passes through.
const longestLine = 1 << 20

// lineReader passes on what a program writes, except for lines that are reports. It is used by one goroutine at a time.
type lineReader struct {
	out    io.Writer
	report func(line []byte) bool // takes a line that is a report, and returns false for others

	line   []byte // that may be a report, so far
	inside bool   // of a line that is none
}

// Write implements io.Writer. What cannot be a report is passed on at once, so that a line may come piece by piece.
func (l *lineReader) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		piece, whole := rest, false
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			piece, whole = rest[:i+1], true
		}
		rest = rest[len(piece):]
		if !l.inside {
			l.line = append(l.line, piece...)
			if start := bytes.TrimLeft(l.line, " \t"); len(start) == 0 && !whole || len(start) > 0 && start[0] == '{' && len(l.line) <= longestLine {
				if !whole {
					continue
				}
				if l.report(l.line) {
					l.line = l.line[:0]
					continue
				}
			}
			piece = l.line
		}
		l.inside = !whole
		_, err := l.out.Write(piece)
		l.line = l.line[:0]
		if err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// flush passes on what has no end of line; it may be a report all the same.
func (l *lineReader) flush() error {
	if len(l.line) == 0 || l.report(l.line) {
		return nil
	}
	_, err := l.out.Write(l.line)
	return err
}

// ownReport is one call to make for a program. One field is set.
type ownReport struct {
	heartbeat  *pb.HeartbeatRequest
	event      *pb.PublishEventRequest
	message    *pb.SendMessagesRequest
	checkpoint *pb.SaveCheckpointRequest
	upload     *fileUpload
	raise      *pb.RaiseBlockerRequest
	resolve    string // the agent that the program no longer waits for; everyAgent = all of them
}

// everyAgent stands for all agents that a program waits for. It is no name of an agent.
const everyAgent = "*"

// fileUpload is a file of the program that becomes an artifact.
type fileUpload struct {
	path   string // relative to the working folder
	header *pb.ArtifactHeader
}

// reportLine is a line by which a program says how it is getting on. docs/agents-run.md describes the fields.
type reportLine struct {
	Type     string   `json:"type"`
	TaskID   *string  `json:"task_id"`
	Status   string   `json:"status"` // of status, with reason
	Activity *string  `json:"activity"`
	Message  *string  `json:"message"` // the same as activity
	Progress *float64 `json:"progress"`
	Counters *struct {
		Turns       *int64 `json:"turns"`
		ModelTokens *int64 `json:"model_tokens"`
		Files       *int64 `json:"files"`
		ToolCalls   *int64 `json:"tool_calls"`
		Errors      *int64 `json:"errors"`
	} `json:"counters"`
	LastTool *string `json:"last_tool"`
	LastFile *string `json:"last_file"`

	Path        string `json:"path"` // of artifact
	Name        string `json:"name"`
	Description string `json:"description"`

	On         string `json:"on"` // of dependency
	WaitingFor string `json:"waiting_for"`
	Reason     string `json:"reason"`
	Blocked    bool   `json:"blocked"`
	Resolved   bool   `json:"resolved"`

	Summary string          `json:"summary"` // of complete
	Result  json.RawMessage `json:"result"`
	Outputs []string        `json:"outputs"`
	To      string          `json:"to"`
}

// errNoReport says that a line is meant for whoever reads the output.
var errNoReport = errors.New("no report")

// parseReport reads a line of a program's output: errNoReport if it is not for the broker, another error if it should be and is wrong.
func parseReport(line []byte) ([]ownReport, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(line, &kind) != nil {
		return nil, errNoReport
	}
	translate := map[string]func(reportLine) ([]ownReport, error){
		"status": statusReport, "artifact": artifactReport, "dependency": dependencyReport, "complete": completeReport,
	}[kind.Type]
	if translate == nil {
		return nil, errNoReport
	}
	var l reportLine
	if err := json.Unmarshal(line, &l); err != nil {
		return nil, fmt.Errorf("%s: %w", kind.Type, err)
	}
	reports, err := translate(l)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind.Type, err)
	}
	return reports, nil
}

func statusReport(l reportLine) ([]ownReport, error) {
	status, err := output.ParseEnum("status", pb.AgentStatus(0).Descriptor(), l.Status)
	if err != nil {
		return nil, fmt.Errorf("%q is none of %s", l.Status, strings.Join(jsonform.EnumNames(pb.AgentStatus(0).Descriptor()), ", "))
	}
	if p := l.Progress; p != nil && !(*p >= 0 && *p <= 1) {
		return nil, fmt.Errorf("progress %v: 0 to 1 is allowed", *p)
	}
	if l.Activity == nil && l.Message != nil {
		l.Activity = l.Message
		if l.Status == "" {
			status = pb.AgentStatus_AGENT_STATUS_ACTIVE.Number()
		}
	}
	h := &pb.HeartbeatRequest{
		Status: pb.AgentStatus(status), Activity: command.Clipped(l.Activity, 512), TaskId: l.TaskID, Progress: l.Progress,
		LastTool: command.Clipped(l.LastTool, 256), LastFile: command.Clipped(l.LastFile, 1024),
	}
	if l.Reason != "" {
		h.StatusReason = command.Clipped(&l.Reason, 512)
	}
	if n := l.Counters; n != nil {
		h.Counters = &pb.Counters{Turns: n.Turns, ModelTokens: n.ModelTokens, Files: n.Files, ToolCalls: n.ToolCalls, Errors: n.Errors}
	}
	return []ownReport{{heartbeat: h}}, nil
}

// artifactReport uploads a file. Its name is its path, unless the line has another one.
func artifactReport(l reportLine) ([]ownReport, error) {
	if l.Path == "" {
		return nil, errors.New("path is missing: the file to upload")
	}
	h := &pb.ArtifactHeader{
		RequestId: uuid.NewString(), Name: l.Name, Description: *command.Clipped(&l.Description, 512), Announce: true,
		MediaType: mime.TypeByExtension(filepath.Ext(l.Path)),
	}
	if h.Name == "" {
		h.Name = filepath.ToSlash(filepath.Clean(l.Path))
	}
	if l.TaskID != nil {
		h.TaskId = *l.TaskID
	}
	return []ownReport{{upload: &fileUpload{l.Path, h}}}, nil
}

// dependencyReport makes a heartbeat of a line. If the line says for which agent the program waits, it
// also raises a blocker, which resolves itself when that agent completes.
func dependencyReport(l reportLine) ([]ownReport, error) {
	awaited := cmp.Or(l.On, l.WaitingFor)
	if awaited == "" {
		return nil, errors.New("waiting_for and on are missing: the agent that the program waits for, or another dependency")
	}
	beat := dependencyHeartbeat(l, awaited)
	if l.WaitingFor == "" {
		return []ownReport{beat}, nil
	}
	if l.Resolved {
		return []ownReport{beat, {resolve: l.WaitingFor}}, nil
	}
	request := &pb.RaiseBlockerRequest{
		RequestId: uuid.NewString(), Reason: prompt.Either(l.Reason != "", l.Reason, "waiting for "+l.WaitingFor), AutoResolve: true,
		Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: l.WaitingFor}},
	}
	if l.TaskID != nil {
		request.TaskId = *l.TaskID
	}
	return []ownReport{beat, {raise: request}}, nil
}

func dependencyHeartbeat(l reportLine, awaited string) ownReport {
	status, activity := pb.AgentStatus_AGENT_STATUS_WAITING, "waiting for "+awaited
	switch {
	case l.Resolved:
		status, activity = pb.AgentStatus_AGENT_STATUS_ACTIVE, "has "+awaited
	case l.Blocked:
		status, activity = pb.AgentStatus_AGENT_STATUS_BLOCKED, "blocked by "+awaited
	}
	activity += prompt.Either(l.Reason != "", ": "+l.Reason, "")
	return ownReport{heartbeat: &pb.HeartbeatRequest{Status: status, Activity: command.Clipped(&activity, 512), TaskId: l.TaskID}}
}

// failures are the texts in result by which a program says that it has failed.
var failures = []string{"failure", "failed", "error"}

// completeReport makes a line into the status, a checkpoint that keeps result and outputs, an event
// and, if the line names a receiver, a message.
func completeReport(l reportLine) ([]ownReport, error) {
	summary := cmp.Or(prompt.Clip(l.Summary, 400), prompt.Clip(strings.Join(l.Outputs, ", "), 400))
	kept := struct {
		Result  json.RawMessage `json:"result"`
		Outputs []string        `json:"outputs"`
	}{l.Result, l.Outputs}
	if len(kept.Result) == 0 {
		kept.Result = json.RawMessage("null")
	}
	if kept.Outputs == nil {
		kept.Outputs = []string{}
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return nil, err
	}
	details := string(text)
	status, progress, outcome, severity := pb.AgentStatus_AGENT_STATUS_COMPLETED, proto.Float64(1), "completed", pb.Severity_SEVERITY_INFO
	var result string
	if json.Unmarshal(l.Result, &result) == nil && slices.Contains(failures, strings.ToLower(result)) {
		status, progress, outcome, severity = pb.AgentStatus_AGENT_STATUS_FAILED, nil, "failed", pb.Severity_SEVERITY_WARNING
	}
	task := ""
	if l.TaskID != nil {
		task = *l.TaskID
	}
	reports := []ownReport{
		{heartbeat: &pb.HeartbeatRequest{
			Status: status, Activity: command.Clipped(&summary, 512), TaskId: l.TaskID, Progress: progress,
		}},
		{resolve: everyAgent},
		{checkpoint: &pb.SaveCheckpointRequest{
			RequestId: uuid.NewString(), Kind: pb.CheckpointKind_CHECKPOINT_KIND_CUSTOM, Reference: outcome, Data: details,
		}},
		{event: &pb.PublishEventRequest{
			RequestId: uuid.NewString(), Type: "work." + outcome, Severity: severity, Category: pb.EventCategory_EVENT_CATEGORY_WORK,
			Summary: *command.Clipped(&summary, 512), Details: details, TaskId: task,
		}},
	}
	if l.To != "" {
		target, err := command.ParseReceiver(l.To)
		if err != nil {
			return nil, err
		}
		reports = append(reports, ownReport{message: &pb.SendMessagesRequest{RequestId: uuid.NewString(), Messages: []*pb.Message{{
			Target: target, Type: "work_" + outcome, Subject: prompt.Either(summary != "", summary, prompt.Either(outcome == "failed", outcome, "done")), Payload: string(l.Result), TaskId: task,
		}}}})
	}
	return reports, nil
}
