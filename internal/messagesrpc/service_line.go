package messagesrpc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/archive"
	"brokerd/internal/jsonline"
	"brokerd/internal/mail"
)

// These functions write messages and deliveries as recordOf does, but without reflection, which is slower: the broker
// archives every message while agents work.

// AppendRecord writes a message with its deliveries as a line of JSON: the answer of GetMessage, with names in
// snake_case, the payload as nested JSON, times in RFC 3339 and durations in seconds.
func AppendRecord(b []byte, r *archive.Record) ([]byte, error) {
	var m pb.Message
	if err := proto.Unmarshal(r.Content, &m); err != nil {
		return nil, fmt.Errorf("read content: %w", err)
	}
	b, err := appendMessage(append(b, `{"message":`...), r, &m)
	if err != nil {
		return nil, err
	}
	b = append(b, `,"deliveries":[`...)
	for i := range r.Deliveries {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendDelivery(b, r.Revision, &r.Deliveries[i])
	}
	return append(b, ']', '}'), nil
}

// appendMessage writes a message. m has the fields of its content.
func appendMessage(b []byte, r *archive.Record, m *pb.Message) ([]byte, error) {
	b = r.ID.AppendTo(append(b, `{"id":"`...))
	b = strconv.AppendInt(append(b, `","revision":`...), r.Revision, 10)
	b = jsonline.Text(append(b, `,"sender":`...), r.Sender)
	b = jsonline.Text(append(b, `,"sender_role":`...), r.SenderRole)
	b = appendNanos(append(b, `,"created_at":`...), r.CreatedAt)
	b = appendNanos(append(b, `,"expires_at":`...), r.ExpiresAt)
	b = appendTarget(append(b, `,"target":`...), m.GetTarget())
	b = appendEnum(append(b, `,"reach":`...), pb.Reach_name[int32(m.GetReach())], "REACH_")
	b = jsonline.Text(append(b, `,"type":`...), m.GetType())
	b = jsonline.Text(append(b, `,"type_as_sent":`...), m.GetTypeAsSent())
	b = jsonline.Text(append(b, `,"version":`...), m.GetVersion())
	b = jsonline.Text(append(b, `,"subject":`...), m.GetSubject())
	b = jsonline.Text(append(b, `,"body":`...), m.GetBody())
	b, err := jsonline.Raw(append(b, `,"payload":`...), m.GetPayload())
	if err != nil {
		return nil, err
	}
	b = strconv.AppendInt(append(b, `,"priority":`...), int64(m.GetPriority()), 10)
	b = jsonline.Text(append(b, `,"channel":`...), m.GetChannel())
	b = append(b, `,"thread_id":`...)
	switch {
	case m.GetThreadId() != "":
		b = jsonline.Text(b, m.GetThreadId())
	case r.Thread != "":
		b = jsonline.Text(b, r.Thread)
	default:
		b = append(r.ID.AppendTo(append(b, '"')), '"')
	}
	b = jsonline.Text(append(b, `,"correlation_id":`...), m.GetCorrelationId())
	b = jsonline.Text(append(b, `,"in_reply_to":`...), m.GetInReplyTo())
	b = jsonline.Text(append(b, `,"task_id":`...), m.GetTaskId())
	b = appendLabels(append(b, `,"labels":`...), m.GetLabels())
	b = jsonline.List(append(b, `,"files":`...), m.GetFiles(), appendFile)
	b = jsonline.List(append(b, `,"artifacts":`...), m.GetArtifacts(), jsonline.Text)
	b = appendDuration(append(b, `,"ttl":`...), m.GetTtl())
	b = appendTime(append(b, `,"not_before":`...), m.GetNotBefore())
	b = jsonline.Text(append(b, `,"ordering_key":`...), m.GetOrderingKey())
	b = strconv.AppendInt(append(b, `,"max_attempts":`...), int64(m.GetMaxAttempts()), 10)
	b = strconv.AppendBool(append(b, `,"requires_response":`...), m.GetRequiresResponse())
	b = appendTime(append(b, `,"response_deadline":`...), m.GetResponseDeadline())
	b = appendDuration(append(b, `,"resend_after":`...), m.GetResendAfter())
	b = jsonline.Text(append(b, `,"trace_parent":`...), m.GetTraceParent())
	return append(b, '}'), nil
}

// appendDelivery writes a delivery as recordOf writes the result of delivery.
func appendDelivery(b []byte, revision int64, d *archive.RecordedDelivery) []byte {
	b = jsonline.Text(append(b, `{"mailbox":`...), d.Mailbox)
	b = appendEnum(append(b, `,"state":`...), pb.DeliveryState_name[int32(d.State)], "DELIVERY_STATE_")
	b = strconv.AppendInt(append(b, `,"arrival":`...), d.Arrival, 10)
	b = strconv.AppendInt(append(b, `,"attempts":`...), d.Attempts, 10)
	b = strconv.AppendInt(append(b, `,"max_attempts":`...), d.MaxAttempts, 10)
	b = append(b, `,"claim_id":"`...)
	holder := ""
	if d.Claims > 0 {
		b = strconv.AppendInt(append(strconv.AppendInt(b, revision, 10), '.'), d.Claims, 10)
		holder = d.Holder
	}
	b = jsonline.Text(append(b, `","holder":`...), holder)
	b = jsonline.Text(append(b, `,"consumer":`...), d.Consumer)
	b = appendNanos(append(b, `,"claimed_at":`...), d.ClaimedAt)
	b = appendNanos(append(b, `,"delivered_at":`...), d.DeliveredAt)
	b = appendNanos(append(b, `,"read_at":`...), d.ReadAt)
	b = appendNanos(append(b, `,"finished_at":`...), d.FinishedAt)
	due, by := int64(0), ""
	if mail.State(d.State) == mail.Delayed {
		due = d.DueAt
	}
	if mail.State(d.State) == mail.Acked {
		by = d.Holder
	}
	b = appendNanos(append(b, `,"due_at":`...), due)
	b = jsonline.List(append(b, `,"history":`...), d.History, appendAttempt)
	b = jsonline.Text(append(b, `,"acked_by":`...), by)
	b = jsonline.List(append(b, `,"offers":`...), d.Offers, appendOffer)
	return append(b, '}')
}

func appendOffer(b []byte, o mail.Offer) []byte {
	b = strconv.AppendInt(append(b, `{"number":`...), int64(o.Number), 10)
	b = appendEnum(append(b, `,"way":`...), pb.OfferWay_name[int32(o.Way)], "OFFER_WAY_")
	b = jsonline.Text(append(b, `,"harness":`...), o.Harness)
	b = jsonline.Text(append(b, `,"mark":`...), o.Mark)
	b = appendTime(append(b, `,"offered_at":`...), stamp(o.OfferedAt))
	b = appendTime(append(b, `,"accepted_at":`...), stamp(o.AcceptedAt))
	b = appendTime(append(b, `,"returned_at":`...), stamp(o.ReturnedAt))
	b = jsonline.Text(append(b, `,"why":`...), o.Why)
	return append(b, '}')
}

func appendAttempt(b []byte, a mail.Attempt) []byte {
	b = strconv.AppendInt(append(b, `{"number":`...), int64(a.Number), 10)
	b = jsonline.Text(append(b, `,"agent":`...), a.Agent)
	b = jsonline.Text(append(b, `,"consumer":`...), a.Consumer)
	b = appendTime(append(b, `,"claimed_at":`...), stamp(a.ClaimedAt))
	b = appendTime(append(b, `,"ended_at":`...), stamp(a.EndedAt))
	b = jsonline.Text(append(b, `,"error":`...), a.Error)
	return append(b, '}')
}

func appendFile(b []byte, f *pb.FileReference) []byte {
	b = jsonline.Text(append(b, `{"path":`...), f.GetPath())
	b = strconv.AppendInt(append(b, `,"line":`...), int64(f.GetLine()), 10)
	return append(b, '}')
}

func appendTarget(b []byte, t *pb.Target) []byte {
	if t == nil {
		return append(b, jsonline.Null...)
	}
	b = append(b, '{')
	switch to := t.To.(type) {
	case *pb.Target_Agent:
		b = jsonline.Text(append(b, `"agent":`...), to.Agent)
	case *pb.Target_Role:
		b = jsonline.Text(append(b, `"role":`...), to.Role)
	case *pb.Target_Channel:
		b = jsonline.Text(append(b, `"channel":`...), to.Channel)
	case *pb.Target_Pattern:
		b = jsonline.Text(append(b, `"pattern":`...), to.Pattern)
	case *pb.Target_Everyone:
		b = strconv.AppendBool(append(b, `"everyone":`...), to.Everyone)
	}
	return append(b, '}')
}

func appendLabels(b []byte, labels map[string]string) []byte {
	if len(labels) == 0 {
		return append(b, '{', '}')
	}
	keys := make([]string, 0, len(labels))
	for k := range labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(jsonline.Text(b, k), ':')
		b = jsonline.Text(b, labels[k])
	}
	return append(b, '}')
}

func appendTime(b []byte, t *timestamppb.Timestamp) []byte {
	if t == nil {
		return append(b, jsonline.Null...)
	}
	return jsonline.Time(b, t.AsTime())
}

// appendNanos writes Unix nanoseconds as a time, and 0 as null.
func appendNanos(b []byte, n int64) []byte {
	if n == 0 {
		return append(b, jsonline.Null...)
	}
	return jsonline.Time(b, time.Unix(0, n))
}

func appendDuration(b []byte, d *durationpb.Duration) []byte {
	if d == nil {
		return append(b, jsonline.Null...)
	}
	return strconv.AppendFloat(b, d.AsDuration().Seconds(), 'f', -1, 64)
}

func appendEnum(b []byte, name, prefix string) []byte {
	name = strings.TrimPrefix(name, prefix)
	if name == "" || name == "UNSPECIFIED" {
		return append(b, jsonline.Null...)
	}
	return append(append(append(b, '"'), name...), '"')
}
