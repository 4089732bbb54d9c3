// Package content knows the form in which the broker stores what a message says: the fields of
// brokerd.v1.Message that its sender has given, marshalled as protobuf. A message keeps this content from the
// call that sends it to the call that delivers it, which passes it on without decoding it.
//
// The core writes content for the messages of the broker itself (Message), appends the fields that the broker
// adds to a sender's content (Added), and reads single text fields (Text). The log reads the target (Target) and the
// title (Title). The package is below the core, so that the core does not import the types of the API.
package content

import (
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
)

// Max is the largest content that the broker takes, in bytes.
const Max = 1 << 20

// Marshal returns the content of a message. Errors: TooLarge beyond Max.
func Marshal(m *pb.Message) ([]byte, error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal message: %w", err)
	}
	if len(b) > Max {
		return nil, TooLarge(len(b), Max)
	}
	return b, nil
}

// TooLarge refuses a content of size bytes.
func TooLarge(size, limit int) error {
	return fault.New(fault.Exhausted, "MESSAGE_TOO_LARGE",
		"the message has %d bytes; at most %d are allowed (session setting message_limit): "+
			"send large content as an artifact", size, limit).
		With("limit", "message_limit").With("message_limit", strconv.Itoa(limit))
}

// A Message has the content of a message that the broker itself sends. Its target is Agent, Role or Channel.
type Message struct {
	Agent      string
	Role       string
	Channel    string
	One        bool // one agent of the target gets it, rather than all
	Type       string
	TypeAsSent string
	Priority   int
	Subject    string
	Body       string
	Payload    string // JSON
	Task       string
	Thread     string
	InReplyTo  int64 // revision of a message; 0 = none
	Artifacts  []string
}

// Marshal returns the content of the message. Errors: TooLarge beyond Max.
func (m *Message) Marshal() ([]byte, error) {
	out := &pb.Message{
		Target: m.target(), Reach: pb.Reach_REACH_ALL, Type: m.Type, TypeAsSent: m.TypeAsSent, Version: "1.0",
		Priority: int32(m.Priority), Subject: m.Subject, Body: m.Body, Payload: m.Payload, TaskId: m.Task,
		ThreadId: m.Thread, Artifacts: m.Artifacts,
	}
	if m.One {
		out.Reach = pb.Reach_REACH_ONE
	}
	if m.InReplyTo != 0 {
		out.InReplyTo = strconv.FormatInt(m.InReplyTo, 10)
	}
	return Marshal(out)
}

func (m *Message) target() *pb.Target {
	switch {
	case m.Agent != "":
		return &pb.Target{To: &pb.Target_Agent{Agent: m.Agent}}
	case m.Role != "":
		return &pb.Target{To: &pb.Target_Role{Role: m.Role}}
	default:
		return &pb.Target{To: &pb.Target_Channel{Channel: m.Channel}}
	}
}

// Added has the fields of a message that the broker adds. It leaves the empty ones as the sender gave them.
type Added struct {
	Agent       string // the target
	ReplyTo     string // the id of the message that it answers
	Correlation string
	Task        string
	Subject     string
	Deadline    time.Time
	TraceParent string
}

// Marshal returns the fields as bytes that are to follow the content from the sender: protobuf merges the two.
func (a *Added) Marshal() []byte {
	m := &pb.Message{
		CorrelationId: a.Correlation, TaskId: a.Task, Subject: a.Subject, InReplyTo: a.ReplyTo,
		TraceParent: a.TraceParent,
	}
	if a.Agent != "" {
		m.Target = &pb.Target{To: &pb.Target_Agent{Agent: a.Agent}}
	}
	if !a.Deadline.IsZero() {
		m.ResponseDeadline = timestamppb.New(a.Deadline)
	}
	b, _ := proto.Marshal(m) // names, ids and subjects are valid text, which always marshals
	return b
}

// A Field is a text field of a content, by its number in message.proto.
type Field protowire.Number

// The fields that the broker reads.
const (
	Subject     Field = 14
	Body        Field = 15
	Payload     Field = 16
	Correlation Field = 20
	Task        Field = 22
	TraceParent Field = 33
)

// Text returns a text field of a content without decoding the rest.
func Text(content []byte, field Field) string {
	var found []byte
	each(content, func(number protowire.Number, value []byte) {
		if number == protowire.Number(field) && value != nil {
			found = value
		}
	})
	return string(found)
}

// each calls use for every field of a message, with its value if that is a text, bytes or a message, else with nil. It
// ends at bytes that are no protobuf.
func each(message []byte, use func(number protowire.Number, value []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return
		}
		var value []byte
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message)
		}
		use(number, value)
		message = message[n:]
	}
}
