package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
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

// ownReport is one call to make for a program.
type ownReport struct {
	heartbeat *pb.HeartbeatRequest
	event     *pb.PublishEventRequest
	message   *pb.SendMessagesRequest
}

// reportLine is a line by which a program says how it is getting on. docs/agents-run.md describes the fields.
type reportLine struct {
	Type     string   `json:"type"`
	TaskID   *string  `json:"task_id"`
	Status   string   `json:"status"` // of status, with reason
	Activity *string  `json:"activity"`
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

	On       string `json:"on"` // of dependency
	Reason   string `json:"reason"`
	Blocked  bool   `json:"blocked"`
	Resolved bool   `json:"resolved"`

	Summary string          `json:"summary"` // of complete
	Result  json.RawMessage `json:"result"`
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
	translate := map[string]func(reportLine) ([]ownReport, error){"status": statusReport, "dependency": dependencyReport, "complete": completeReport}[kind.Type]
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
	status, err := parseEnum("status", pb.AgentStatus(0).Descriptor(), l.Status)
	if err != nil {
		return nil, fmt.Errorf("%q is none of %s", l.Status, strings.Join(enumNames(pb.AgentStatus(0).Descriptor()), ", "))
	}
	if p := l.Progress; p != nil && !(*p >= 0 && *p <= 1) {
		return nil, fmt.Errorf("progress %v: 0 to 1 is allowed", *p)
	}
	h := &pb.HeartbeatRequest{
		Status: pb.AgentStatus(status), Activity: clipped(l.Activity, 512), TaskId: l.TaskID, Progress: l.Progress,
		LastTool: clipped(l.LastTool, 256), LastFile: clipped(l.LastFile, 1024),
	}
	if l.Reason != "" {
		h.StatusReason = clipped(&l.Reason, 512)
	}
	if n := l.Counters; n != nil {
		h.Counters = &pb.Counters{Turns: n.Turns, ModelTokens: n.ModelTokens, Files: n.Files, ToolCalls: n.ToolCalls, Errors: n.Errors}
	}
	return []ownReport{{heartbeat: h}}, nil
}

func dependencyReport(l reportLine) ([]ownReport, error) {
	if l.On == "" {
		return nil, errors.New("on is missing: what is waited for")
	}
	status, activity := pb.AgentStatus_AGENT_STATUS_WAITING, "waiting for "+l.On
	switch {
	case l.Resolved:
		status, activity = pb.AgentStatus_AGENT_STATUS_ACTIVE, "has "+l.On
	case l.Blocked:
		status, activity = pb.AgentStatus_AGENT_STATUS_BLOCKED, "blocked by "+l.On
	}
	if l.Reason != "" {
		activity += ": " + l.Reason
	}
	return []ownReport{{heartbeat: &pb.HeartbeatRequest{Status: status, Activity: clipped(&activity, 512), TaskId: l.TaskID}}}, nil
}

// completeReport makes three calls of a line: the status, an event for whoever follows, and a message if somebody is to get it.
func completeReport(l reportLine) ([]ownReport, error) {
	summary := clip(l.Summary, 400)
	details := `{"result":null}`
	if len(l.Result) > 0 {
		details = `{"result":` + string(l.Result) + `}`
	}
	task := ""
	if l.TaskID != nil {
		task = *l.TaskID
	}
	reports := []ownReport{
		{heartbeat: &pb.HeartbeatRequest{
			Status: pb.AgentStatus_AGENT_STATUS_COMPLETED, Activity: clipped(&summary, 512), TaskId: l.TaskID, Progress: proto.Float64(1),
		}},
		{event: &pb.PublishEventRequest{
			RequestId: uuid.NewString(), Type: "work.completed", Category: pb.EventCategory_EVENT_CATEGORY_WORK,
			Summary: *clipped(&summary, 512), Details: details, TaskId: task,
		}},
	}
	if l.To != "" {
		target, err := parseReceiver(l.To)
		if err != nil {
			return nil, err
		}
		reports = append(reports, ownReport{message: &pb.SendMessagesRequest{RequestId: uuid.NewString(), Messages: []*pb.Message{{
			Target: target, Type: "work_completed", Subject: cond(summary != "", summary, "done"), Payload: string(l.Result), TaskId: task,
		}}}})
	}
	return reports, nil
}

// clipped shortens a text to at most that many bytes, at the end of a character.
func clipped(s *string, most int) *string {
	if s == nil || len(*s) <= most {
		return s
	}
	cut := most - len("…")
	for !utf8.RuneStart((*s)[cut]) {
		cut--
	}
	return proto.String((*s)[:cut] + "…")
}
