package broker

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/events"
)

// eventContent is the content of the message that carries an event.
func eventContent(d *Draft, e *events.Event) ([]byte, error) {
	return content(&pb.Message{
		Target: &pb.Target{To: &pb.Target_Channel{Channel: d.Target.Name}}, Reach: pb.Reach_REACH_ALL,
		Type: d.Type, TypeAsSent: e.TypeAsSent, Version: "1.0", Priority: int32(d.Priority), Subject: d.Subject, TaskId: d.Task,
		Payload: eventPayload(e),
	})
}

// eventPayload is an event as brokerctl writes it in JSON. The details are nested as they are.
func eventPayload(e *events.Event) string {
	var b strings.Builder
	text := func(field, s string) {
		b.WriteString(`,"` + field + `":`)
		writeJSON(&b, s)
	}
	b.WriteString(`{"revision":` + strconv.FormatInt(e.Revision, 10))
	text("time", e.Time.UTC().Format(time.RFC3339Nano))
	text("category", strings.ToLower(e.Category.String()))
	text("type", e.Type)
	text("type_as_sent", e.OtherSpelling())
	text("severity", strings.ToLower(e.Severity.String()))
	text("source", e.Source)
	text("source_role", e.SourceRole)
	text("summary", e.Summary)
	b.WriteString(`,"details":`)
	if e.Details == "" {
		b.WriteString("null")
	} else {
		b.WriteString(e.Details)
	}
	b.WriteString(`,"related":[`)
	for i, about := range e.Related {
		if i > 0 {
			b.WriteByte(',')
		}
		writeJSON(&b, about)
	}
	b.WriteByte(']')
	text("task_id", e.TaskID)
	b.WriteByte('}')
	return b.String()
}

// noticeDraft is a notice as a message.
func noticeDraft(n Notice) (*Draft, error) {
	d := n.draft()
	m := &pb.Message{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: n.Agent}}, Reach: pb.Reach_REACH_ALL,
		Type: d.Type, Version: "1.0", Priority: int32(d.Priority), Subject: d.Subject, Payload: n.Payload, TaskId: n.Task,
	}
	if d.Target.Kind == ToRole {
		m.Target.To = &pb.Target_Role{Role: n.Role}
	}
	var err error
	d.Content, err = content(m)
	return d, err
}

// noticeText returns the subject and the payload of a notice.
func noticeText(content []byte) (subject, payload string) {
	var m pb.Message
	_ = proto.Unmarshal(content, &m) // the broker has marshalled it
	return m.GetSubject(), m.GetPayload()
}

// noticeProtos converts unread notices.
func noticeProtos(unread []UnreadNotice) []*pb.Notice {
	out := make([]*pb.Notice, len(unread))
	for i, n := range unread {
		out[i] = &pb.Notice{
			Revision: n.Revision, Type: n.Type, Subject: n.Subject, Payload: n.Payload, CreatedAt: stamp(n.CreatedAt),
		}
	}
	return out
}

// letterDraft is a letter as a message to one of its targets.
func letterDraft(l *Letter, t Target) (*Draft, error) {
	d := l.draft(t)
	m := &pb.Message{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: t.Name}}, Reach: pb.Reach_REACH_ALL,
		Type: d.Type, Version: "1.0", Priority: int32(d.Priority), Subject: d.Subject, Body: l.Body, Payload: l.Payload,
		TaskId: l.Task, ThreadId: l.Thread, Artifacts: l.Artifacts,
	}
	if t.Kind == ToRole {
		m.Target.To = &pb.Target_Role{Role: t.Name}
	}
	if d.One {
		m.Reach = pb.Reach_REACH_ONE
	}
	if l.InReplyTo != 0 {
		m.InReplyTo = strconv.FormatInt(l.InReplyTo, 10)
	}
	var err error
	d.Content, err = content(m)
	return d, err
}
