package agentmessages

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
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	"brokerd/cmd/brokerctl/internal/each"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const (
	toAll    = "ALL"                  // the to_agent of a broadcast
	fileTime = "2006-01-02T15:04:05Z" // the form of times that the bridge writes, in UTC
	maxAhead = 365 * 24 * time.Hour   // the latest deadline that the broker takes, from now
)

// A messageFile is a file of the format agent-messages: a message, or an event if event is set.
type messageFile struct {
	id      string // message_id or event_id
	from    string
	to      string // the name of an agent, or toAll
	status  string
	sent    time.Time // timestamp; the zero time if the file has none
	answers string    // in_reply_to
	message *pb.Message
	event   *pb.PublishEventRequest
}

// parseFile reads a file. It leaves out a deadline that the broker refuses because it is not
// after now. The error is mailfile.ErrIncomplete or a refusal.
func parseFile(data []byte, now time.Time) (*messageFile, error) {
	f, err := mailfile.Parse(data)
	if err != nil {
		return nil, err
	}
	a := &messageFile{}
	if f["event_id"] != nil && f["message_id"] == nil {
		err = a.readEvent(f)
	} else {
		err = a.readMessage(f, now)
	}
	if err != nil {
		return nil, err
	}
	if a.id == "" || a.from == "" {
		return nil, mailfile.Refusal("it names no id or no sender")
	}
	return a, nil
}

// readMessage reads a message. Labels keep its fields for which a message of the broker has none, or
// which the broker stamps itself.
func (a *messageFile) readMessage(f mailfile.Fields, now time.Time) error {
	m := &pb.Message{}
	var timestamp, deadline string
	var priority, payload json.RawMessage
	metadata := mailfile.Fields{}
	id, answers, due := f["message_id"], f["in_reply_to"], f["response_deadline"]
	err := errors.Join(f.Take("message_id", &a.id), f.Take("from_agent", &a.from), f.Take("to_agent", &a.to),
		f.Take("timestamp", &timestamp), f.Take("protocol_version", &m.Version), f.Take("message_type", &m.Type),
		f.Take("priority", &priority), f.Take("subject", &m.Subject), f.Take("payload", &payload),
		f.Take("requires_response", &m.RequiresResponse), f.Take("response_deadline", &deadline),
		f.Take("conversation_id", &m.ThreadId), f.Take("in_reply_to", &a.answers), f.Take("status", &a.status),
		f.Take("metadata", &metadata))
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
	if err := f.TakePriority(priority, m); err != nil {
		return err
	}
	if text, ok := mailfile.JSONString(payload); ok {
		m.Body = text
	} else {
		m.Payload = string(payload)
	}
	given := mailfile.Fields{"message_id": id, "in_reply_to": answers, "response_deadline": due}
	for name, value := range given {
		if value != nil {
			f[name] = value
		}
	}
	f.Set("timestamp", timestamp)
	labels, err := readMetadata(metadata, m, f)
	if err != nil {
		return err
	}
	a.message = m
	return f.Keep(m, labels)
}

// readMetadata takes the task, the files and the strings of the metadata. The rest becomes fields
// metadata.NAME of f.
func readMetadata(metadata mailfile.Fields, m *pb.Message, f mailfile.Fields) (labels map[string]string, err error) {
	var files []string
	if err := errors.Join(metadata.Take("task_id", &m.TaskId), metadata.Take("related_files", &files)); err != nil {
		return nil, err
	}
	for _, name := range files {
		m.Files = append(m.Files, &pb.FileReference{Path: name})
	}
	labels = map[string]string{}
	for name, value := range metadata {
		if text, ok := mailfile.JSONString(value); ok {
			labels[name] = text
		} else {
			f["metadata."+name] = value
		}
	}
	return labels, nil
}

// readEvent reads an event. Its details are event_data, with the fields that an event of the broker
// does not have.
func (a *messageFile) readEvent(f mailfile.Fields) error {
	e := &pb.PublishEventRequest{}
	var timestamp string
	var data json.RawMessage
	err := errors.Join(f.Take("event_id", &a.id), f.Take("event_type", &e.Type), f.Take("source_agent", &a.from),
		f.Take("timestamp", &timestamp), f.Take("event_data", &data), f.Take("status", &a.status))
	if err != nil {
		return err
	}
	if a.sent, err = parseTime("timestamp", timestamp); err != nil {
		return err
	}
	details := mailfile.Fields{}
	if json.Unmarshal(data, &details) != nil || details == nil {
		details = mailfile.Fields{}
		if data != nil {
			details[mailfile.FieldPrefix+"event_data"] = data // the details of an event are an object
		}
	}
	// The summary and the task are of use to readers of the log. A value of another form stays in the details.
	_ = json.Unmarshal(details["summary"], &e.Summary)
	_ = json.Unmarshal(details["task_id"], &e.TaskId)
	e.Summary, e.TaskId = mailfile.OneLine(e.Summary, 512), mailfile.OneLine(e.TaskId, 128)
	for name, value := range f {
		details[mailfile.FieldPrefix+name] = value
	}
	details.Set(mailfile.FieldPrefix+"event_id", a.id)
	details.Set(mailfile.FieldPrefix+"timestamp", timestamp)
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
		return t, mailfile.Refusalf("%s is %q; it must be a time such as %s", name, mailfile.OneLine(text, 60), fileTime)
	}
	return t, nil
}

// messageIDForm is the form of the ids that revisionID makes.
var messageIDForm = regexp.MustCompile(`^msg_\d{8}_\d{6}_r(\d{12,18})$`)

// messageID returns the message_id of a message: that of its file, or else revisionID.
func messageID(m *pb.Message) string {
	_, f, _ := mailfile.Kept(m)
	if id, ok := mailfile.JSONString(f["message_id"]); ok {
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

// renderFile writes a message as a file for an agent. answers is the message_id of the message
// that it answers, if any.
func renderFile(m *pb.Message, agent, answers string) ([]byte, error) {
	labels, f, payload := mailfile.Kept(m)
	to := prompt.Either(m.GetTarget().GetEveryone() || m.GetTarget().GetAgent() == toAll, toAll, agent)
	metadata := mailfile.Fields{}
	for name, value := range labels {
		if name != engine.ViaLabel {
			metadata.Set(name, value)
		}
	}
	for name, value := range f {
		if inner, ok := strings.CutPrefix(name, "metadata."); ok {
			metadata[inner] = value
			delete(f, name)
		}
	}
	files := each.Of(m.GetFiles(), (*pb.FileReference).GetPath)
	metadata.Set("task_id", m.GetTaskId())
	metadata.Set("related_files", files)

	known := mailfile.Fields{}
	known.Set("message_id", messageID(m))
	known.Set("protocol_version", m.GetVersion())
	known.Set("timestamp", m.GetCreatedAt().AsTime().UTC().Format(fileTime))
	known.Set("from_agent", m.GetSender())
	known.Set("to_agent", to)
	known.Set("message_type", mailfile.TypeName(m))
	known.Set("priority", mailfile.PriorityWord(m.GetPriority()))
	known.Set("subject", m.GetSubject())
	if payload == "" {
		known.Set("payload", m.GetBody())
	} else {
		known["payload"] = json.RawMessage(payload)
		known.Set("body", m.GetBody())
	}
	known["requires_response"] = json.RawMessage(strconv.FormatBool(m.GetRequiresResponse()))
	if m.GetResponseDeadline() != nil {
		known.Set("response_deadline", m.GetResponseDeadline().AsTime().UTC().Format(fileTime))
	}
	known.Set("conversation_id", m.GetThreadId())
	known.Set("in_reply_to", answers)
	known.Set("status", statusDelivered)
	if len(metadata) > 0 {
		known.Set("metadata", metadata)
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

// renderEvent writes the message of an event as a file. It returns the event_id as well.
func renderEvent(m *pb.Message) (id string, data []byte, err error) {
	var a announcement
	if err := json.Unmarshal([]byte(m.GetPayload()), &a); err != nil {
		return "", nil, err
	}
	details := mailfile.Fields{}
	if err := json.Unmarshal(a.Details, &details); err != nil || details == nil {
		details = mailfile.Fields{}
		details.Set("summary", a.Summary)
	}
	known := mailfile.Fields{}
	known.Set("event_id", strings.Replace(messageID(m), "msg_", "evt_", 1))
	known.Set("event_type", eventName(a.Type, m.GetTypeAsSent()))
	known.Set("timestamp", a.Time)
	known.Set("source_agent", a.Source)
	known.Set("status", statusDelivered)
	for name, value := range details {
		if own, ok := strings.CutPrefix(name, mailfile.FieldPrefix); ok {
			known[own] = value
			delete(details, name)
		}
	}
	if known["event_data"] == nil {
		known.Set("event_data", details)
	}
	id, _ = mailfile.JSONString(known["event_id"])
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
func layout(f mailfile.Fields) ([]byte, error) {
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

// eventName returns the name that files of agent-messages have for a type of events: as its publisher wrote it if that
// is another spelling than the broker's, and otherwise such as TaskCompleted for task.completed.
func eventName(kind, published string) string {
	if published != "" && published != kind {
		return published
	}
	if kind == "task_complete" { // the broker's name for it
		kind = "task_completed"
	}
	var name strings.Builder
	for _, word := range strings.FieldsFunc(kind, func(r rune) bool { return r == '_' || r == '.' || r == '-' }) {
		for i, r := range word {
			if i == 0 {
				r = unicode.ToUpper(r)
			}
			name.WriteRune(r)
		}
	}
	return name.String()
}
