package messagesrpc

import (
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/broker"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/router"
)

// A sendAnswer is a frame of a Send stream whose results have no fault and no warning.
type sendAnswer struct {
	service  *Service
	session  string
	outcomes []router.Outcome
}

// plainOutcomes reports whether a sendAnswer can have the outcomes.
func (s *Service) plainOutcomes(session string, outcomes []router.Outcome) bool {
	return !slices.ContainsFunc(outcomes, func(o router.Outcome) bool {
		return o.Fault != nil || len(o.Warnings) > 0 || s.sleeper(session, &o) != nil
	})
}

// WireSize returns the most bytes that AppendWire appends.
func (a *sendAnswer) WireSize() (n int) {
	for i := range a.outcomes {
		n += outcomeSize(&a.outcomes[i])
	}
	return n
}

func outcomeSize(o *router.Outcome) int {
	n := 80
	for i := range o.Recipients {
		n += 12 + len(o.Recipients[i].Mailbox)
	}
	return n
}

// AppendWire appends a brokerd.v1.SendResponse.
func (a *sendAnswer) AppendWire(b []byte) []byte {
	for i := range a.outcomes {
		o := &a.outcomes[i]
		var at opened
		b, at = begin(b, 1, outcomeSize(o))
		b = putID(b, 1, o.ID)
		b = putNumber(b, 2, o.Revision)
		b = putNumber(b, 3, int64(int32(o.Count)))
		for j := range o.Recipients {
			r := &o.Recipients[j]
			var at opened
			b, at = begin(b, 4, len(r.Mailbox))
			b = putText(b, 1, r.Mailbox)
			b = putNumber(b, 2, int64(recipientOutcome(r)))
			b = at.end(b)
		}
		b = putBool(b, 5, o.Duplicate)
		b = putNumber(b, 7, int64(int32(o.Refused)))
		b = at.end(b)
	}
	return b
}

// Message returns the frame as a message of protobuf.
func (a *sendAnswer) Message() proto.Message {
	out := &pb.SendResponse{}
	for i := range a.outcomes {
		out.Results = append(out.Results, a.service.result(a.session, &a.outcomes[i]))
	}
	return out
}

// A deliverAnswer is a frame of a Claim stream that delivers messages.
type deliverAnswer struct {
	service *Service
	claims  []broker.Claim
}

// WireSize returns the most bytes that AppendWire appends.
func (a *deliverAnswer) WireSize() int {
	n := 8
	for i := range a.claims {
		n += claimSize(&a.claims[i])
	}
	return n
}

func claimSize(c *broker.Claim) int {
	return 320 + len(c.Sender) + len(c.SenderRole) + len(c.Thread) + len(c.Mailbox) + len(c.Content)
}

// AppendWire appends a brokerd.v1.ClaimResponse.
func (a *deliverAnswer) AppendWire(b []byte) []byte {
	b, frame := begin(b, 2, a.WireSize())
	for i := range a.claims {
		c := &a.claims[i]
		var at opened
		b, at = begin(b, 1, claimSize(c))
		b = putText(b, 1, c.ClaimID())
		b = putMessage(b, 2, &c.Message)
		b = putNumber(b, 3, int64(int32(c.Attempt)))
		b = putNumber(b, 4, int64(int32(c.MaxAttempts)))
		b = putText(b, 5, c.Mailbox)
		b = putTime(b, 6, int64(c.ExpiresIn/time.Second), int64(c.ExpiresIn%time.Second))
		b = putBool(b, 7, c.Resumed)
		b = putText(b, 8, a.service.traces.OfClaim(c))
		b = at.end(b)
	}
	return frame.end(b)
}

// Message returns the frame as a message of protobuf.
func (a *deliverAnswer) Message() proto.Message {
	delivery := &pb.ClaimDelivery{Claims: a.service.claimedAll(a.claims)}
	return &pb.ClaimResponse{Frame: &pb.ClaimResponse_Deliver{Deliver: delivery}}
}

// A settledAnswer is a frame of a Claim stream whose results have no fault.
type settledAnswer struct{ results []broker.Settled }

// plainResults reports whether a settledAnswer can have the results.
func plainResults(results []broker.Settled) bool {
	return !slices.ContainsFunc(results, func(r broker.Settled) bool { return r.Fault != nil })
}

// WireSize returns the most bytes that AppendWire appends.
func (a *settledAnswer) WireSize() int {
	n := 8
	for i := range a.results {
		n += 12 + len(a.results[i].ClaimID)
	}
	return n
}

// AppendWire appends a brokerd.v1.ClaimResponse.
func (a *settledAnswer) AppendWire(b []byte) []byte {
	b, frame := begin(b, 3, a.WireSize())
	for i := range a.results {
		id := a.results[i].ClaimID
		var at opened
		b, at = begin(b, 1, len(id))
		b = at.end(putText(b, 1, id))
	}
	return frame.end(b)
}

// Message returns the frame as a message of protobuf.
func (a *settledAnswer) Message() proto.Message {
	results := make([]*pb.SettleResult, len(a.results))
	for i := range a.results {
		results[i] = &pb.SettleResult{ClaimId: a.results[i].ClaimID}
	}
	return &pb.ClaimResponse{Frame: &pb.ClaimResponse_Results{Results: &pb.SettleResults{Results: results}}}
}

// putMessage appends what wire returns for a stored message.
func putMessage(b []byte, field protowire.Number, m *mail.Message) []byte {
	b, at := begin(b, field, 128+len(m.Content))
	b = putID(b, fieldID, m.ID)
	b = putNumber(b, fieldRevision, m.Revision)
	b = putText(b, fieldSender, m.Sender)
	b = putText(b, fieldSenderRole, m.SenderRole)
	b = putTime(b, fieldCreatedAt, m.CreatedAt.Unix(), int64(m.CreatedAt.Nanosecond()))
	if !m.ExpiresAt.IsZero() {
		b = putTime(b, fieldExpiresAt, m.ExpiresAt.Unix(), int64(m.ExpiresAt.Nanosecond()))
	}
	if m.Thread == "" {
		b = putID(b, fieldThread, m.ID)
	}
	b = putText(b, fieldThread, m.Thread)
	return at.end(append(b, m.Content...))
}

// An opened message of a field has no length yet.
type opened struct {
	at     int // where its fields begin
	length int // bytes of the length in front of them
}

// begin begins a message in a field. Its fields follow, and end. about is how many bytes they may have: the length has
// its place in front of them.
func begin(b []byte, field protowire.Number, about int) ([]byte, opened) {
	b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(about))
	return b, opened{len(b), protowire.SizeVarint(uint64(about))}
}

// end sets the length of the message. It moves the fields if the length takes another number of bytes.
func (o opened) end(b []byte) []byte {
	start, size := o.at-o.length, len(b)-o.at
	length := protowire.SizeVarint(uint64(size))
	if length != o.length {
		b = append(b, make([]byte, max(0, length-o.length))...)
		copy(b[start+length:], b[o.at:o.at+size])
	}
	protowire.AppendVarint(b[:start], uint64(size))
	return b[:start+length+size]
}

func putText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func putNumber(b []byte, field protowire.Number, n int64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(n))
}

func putBool(b []byte, field protowire.Number, set bool) []byte {
	return putNumber(b, field, int64(protowire.EncodeBool(set)))
}

func putID(b []byte, field protowire.Number, id msgid.ID) []byte {
	b, at := begin(b, field, len("00000000-0000-0000-0000-000000000000"))
	return at.end(id.AppendTo(b))
}

// putTime appends a google.protobuf.Timestamp or Duration.
func putTime(b []byte, field protowire.Number, seconds, nanos int64) []byte {
	b, at := begin(b, field, 0)
	return at.end(putNumber(putNumber(b, 1, seconds), 2, nanos))
}
