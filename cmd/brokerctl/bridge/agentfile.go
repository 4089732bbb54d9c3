package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

const (
	toAll    = "ALL"                  // the to_agent of a broadcast
	fileTime = "2006-01-02T15:04:05Z" // the form of times that the bridge writes, in UTC
	maxAhead = 365 * 24 * time.Hour   // the latest deadline that the broker takes, from now
)

// An agentFile is a file of the format agent-messages: a message, or an event if event is set.
type agentFile struct {
	id      string // message_id or event_id
	from    string
	to      string // the name of an agent, or toAll
	status  string
	sent    time.Time // timestamp; the zero time if the file has none
	answers string    // in_reply_to
	message *pb.Message
	event   *pb.PublishEventRequest
}

// parseAgentFile reads a file. It leaves out a deadline that the broker refuses because it is not
// after now. The error is errIncomplete or a refusal.
func parseAgentFile(data []byte, now time.Time) (*agentFile, error) {
	f, err := parse(data)
	if err != nil {
		return nil, err
	}
	a := &agentFile{}
	if f["event_id"] != nil && f["message_id"] == nil {
		err = a.readEvent(f)
	} else {
		err = a.readMessage(f, now)
	}
	if err != nil {
		return nil, err
	}
	if a.id == "" || a.from == "" {
		return nil, refusal("it names no id or no sender")
	}
	return a, nil
}

// readMessage reads a message. Labels keep its fields for which a message of the broker has none, or
// which the broker stamps itself.
func (a *agentFile) readMessage(f fields, now time.Time) error {
	m := &pb.Message{}
	var timestamp, deadline string
	var priority, payload json.RawMessage
	metadata := fields{}
	id, answers, due := f["message_id"], f["in_reply_to"], f["response_deadline"]
	err := errors.Join(f.take("message_id", &a.id), f.take("from_agent", &a.from), f.take("to_agent", &a.to),
		f.take("timestamp", &timestamp), f.take("protocol_version", &m.Version), f.take("message_type", &m.Type),
		f.take("priority", &priority), f.take("subject", &m.Subject), f.take("payload", &payload),
		f.take("requires_response", &m.RequiresResponse), f.take("response_deadline", &deadline),
		f.take("conversation_id", &m.ThreadId), f.take("in_reply_to", &a.answers), f.take("status", &a.status),
		f.take("metadata", &metadata))
	if err != nil {
		return err
	}
	if a.sent, err = parseTime("timestamp", timestamp); err != nil {
		return err
	}
	limit, err := parseTime("response_deadline", deadline)
	if err != nil {
		return err
	}
	if m.RequiresResponse && limit.After(now) && limit.Before(now.Add(maxAhead)) {
		m.ResponseDeadline = timestamppb.New(limit)
	}
	if err := f.takePriority(priority, m); err != nil {
		return err
	}
	if text, ok := jsonString(payload); ok {
		m.Body = text
	} else {
		m.Payload = string(payload)
	}
	given := fields{"message_id": id, "in_reply_to": answers, "response_deadline": due}
	for name, value := range given {
		if value != nil {
			f[name] = value
		}
	}
	f.set("timestamp", timestamp)
	labels, err := readMetadata(metadata, m, f)
	if err != nil {
		return err
	}
	a.message = m
	return f.keep(m, labels)
}

// readMetadata takes the task, the files and the strings of the metadata. The rest becomes fields
// metadata.NAME of f.
func readMetadata(metadata fields, m *pb.Message, f fields) (labels map[string]string, err error) {
	var files []string
	if err := errors.Join(metadata.take("task_id", &m.TaskId), metadata.take("related_files", &files)); err != nil {
		return nil, err
	}
	for _, name := range files {
		m.Files = append(m.Files, &pb.FileReference{Path: name})
	}
	labels = map[string]string{}
	for name, value := range metadata {
		if text, ok := jsonString(value); ok {
			labels[name] = text
		} else {
			f["metadata."+name] = value
		}
	}
	return labels, nil
}

// readEvent reads an event. Its details are event_data, with the fields that an event of the broker
// does not have.
func (a *agentFile) readEvent(f fields) error {
	e := &pb.PublishEventRequest{}
	var timestamp string
	var data json.RawMessage
	err := errors.Join(f.take("event_id", &a.id), f.take("event_type", &e.Type), f.take("source_agent", &a.from),
		f.take("timestamp", &timestamp), f.take("event_data", &data), f.take("status", &a.status))
	if err != nil {
		return err
	}
	if a.sent, err = parseTime("timestamp", timestamp); err != nil {
		return err
	}
	details := fields{}
	if json.Unmarshal(data, &details) != nil || details == nil {
		details = fields{}
		if data != nil {
			details[fieldPrefix+"event_data"] = data // the details of an event are an object
		}
	}
	// The summary and the task are of use to readers of the log. A value of another form stays in the details.
	_ = json.Unmarshal(details["summary"], &e.Summary)
	_ = json.Unmarshal(details["task_id"], &e.TaskId)
	e.Summary, e.TaskId = oneLine(e.Summary, 512), oneLine(e.TaskId, 128)
	for name, value := range f {
		details[fieldPrefix+name] = value
	}
	details.set(fieldPrefix+"event_id", a.id)
	details.set(fieldPrefix+"timestamp", timestamp)
	text, err := json.Marshal(details)
	e.Details, a.event = string(text), e
	return err
}

// parseTime reads a time of RFC 3339; the zero time if text is empty.
func parseTime(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, refusal(fmt.Sprintf("%s is %q; it must be a time such as %s", name, oneLine(text, 60), fileTime))
	}
	return t, nil
}

// jsonString returns the text of a JSON string.
func jsonString(value json.RawMessage) (text string, ok bool) {
	return text, bytes.HasPrefix(value, []byte{'"'}) && json.Unmarshal(value, &text) == nil
}

// messageIDForm is the form of the ids that revisionID makes.
var messageIDForm = regexp.MustCompile(`^msg_\d{8}_\d{6}_r(\d{12,18})$`)

// messageID returns the message_id of a message: that of its file, or else revisionID.
func messageID(m *pb.Message) string {
	_, f, _ := kept(m)
	if id, ok := jsonString(f["message_id"]); ok {
		return id
	}
	return revisionID(m)
}

// revisionID returns an id with the time and the revision of a message, so that the order of the ids is
// the order of the messages.
func revisionID(m *pb.Message) string {
	return fmt.Sprintf("msg_%s_r%012d", m.GetCreatedAt().AsTime().Format("20060102_150405"), m.GetRevision())
}

// revisionOf returns the revision in an id that revisionID has made; "" for other ids.
func revisionOf(id string) string {
	match := messageIDForm.FindStringSubmatch(id)
	if match == nil {
		return ""
	}
	return strings.TrimLeft(match[1], "0")
}

// renderAgentFile writes a message as a file for an agent. answers is the message_id of the message
// that it answers, if any.
func renderAgentFile(m *pb.Message, agent, answers string) ([]byte, error) {
	labels, f, payload := kept(m)
	to := agent
	if m.GetTarget().GetEveryone() || m.GetTarget().GetAgent() == toAll {
		to = toAll
	}
	metadata := fields{}
	for name, value := range labels {
		if name != viaLabel {
			metadata.set(name, value)
		}
	}
	for name, value := range f {
		if inner, ok := strings.CutPrefix(name, "metadata."); ok {
			metadata[inner] = value
			delete(f, name)
		}
	}
	var files []string
	for _, file := range m.GetFiles() {
		files = append(files, file.GetPath())
	}
	metadata.set("task_id", m.GetTaskId())
	metadata.set("related_files", files)

	known := fields{}
	known.set("message_id", messageID(m))
	known.set("protocol_version", m.GetVersion())
	known.set("timestamp", m.GetCreatedAt().AsTime().UTC().Format(fileTime))
	known.set("from_agent", m.GetSender())
	known.set("to_agent", to)
	known.set("message_type", typeName(m))
	known.set("priority", priorityWord(m.GetPriority()))
	known.set("subject", m.GetSubject())
	if payload == "" {
		known.set("payload", m.GetBody())
	} else {
		known["payload"] = json.RawMessage(payload)
		known.set("body", m.GetBody())
	}
	known["requires_response"] = json.RawMessage(strconv.FormatBool(m.GetRequiresResponse()))
	if m.GetResponseDeadline() != nil {
		known.set("response_deadline", m.GetResponseDeadline().AsTime().UTC().Format(fileTime))
	}
	known.set("conversation_id", m.GetThreadId())
	known.set("in_reply_to", answers)
	known.set("status", statusDelivered)
	if len(metadata) > 0 {
		known.set("metadata", metadata)
	}
	maps.Copy(known, f) // the fields of the sender's file
	return layout(known)
}

// An announcement is the payload of the message with which the broker announces an event.
type announcement struct {
	Time    string          `json:"time"`
	Type    string          `json:"type"`
	Source  string          `json:"source"`
	Summary string          `json:"summary"`
	Details json.RawMessage `json:"details"`
}

// renderAgentEvent writes the message of an event as a file. It returns the event_id as well.
func renderAgentEvent(m *pb.Message) (id string, data []byte, err error) {
	var a announcement
	if err := json.Unmarshal([]byte(m.GetPayload()), &a); err != nil {
		return "", nil, err
	}
	details := fields{}
	if err := json.Unmarshal(a.Details, &details); err != nil || details == nil {
		details = fields{}
		details.set("summary", a.Summary)
	}
	known := fields{}
	known.set("event_id", strings.Replace(messageID(m), "msg_", "evt_", 1))
	known.set("event_type", eventName(a.Type, m.GetTypeAsSent()))
	known.set("timestamp", a.Time)
	known.set("source_agent", a.Source)
	known.set("status", statusDelivered)
	for name, value := range details {
		if own, ok := strings.CutPrefix(name, fieldPrefix); ok {
			known[own] = value
			delete(details, name)
		}
	}
	if known["event_data"] == nil {
		known.set("event_data", details)
	}
	id, _ = jsonString(known["event_id"])
	data, err = layout(known)
	return id, data, err
}

// fieldOrder is the order of the fields of a file that the bridge writes. Other fields follow by name.
var fieldOrder = []string{
	"message_id", "event_id", "protocol_version", "event_type", "timestamp", "source_agent", "from_agent", "to_agent",
	"message_type", "priority", "subject", "payload", "body", "event_data", "requires_response", "response_deadline",
	"conversation_id", "in_reply_to", "status", "metadata",
}

// layout writes fields as an indented object.
func layout(f fields) ([]byte, error) {
	names := slices.SortedFunc(maps.Keys(f), func(a, b string) int {
		rank := func(name string) int {
			if i := slices.Index(fieldOrder, name); i >= 0 {
				return i
			}
			return len(fieldOrder)
		}
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	var flat bytes.Buffer
	flat.WriteByte('{')
	for i, name := range names {
		if i > 0 {
			flat.WriteByte(',')
		}
		quoted, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		flat.Write(quoted)
		flat.WriteByte(':')
		flat.Write(f[name])
	}
	flat.WriteByte('}')
	var out bytes.Buffer
	err := json.Indent(&out, flat.Bytes(), "", "  ")
	out.WriteByte('\n')
	return out.Bytes(), err
}
