package broker

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonline"
)

// These write messages and deliveries just as recordOf does, without reflection: many are archived, beside the agents' work.

// appendRecord writes a message with its deliveries.
func appendRecord(b []byte, r *record) ([]byte, error) {
	m := wire(&r.Message)
	m.ProtoReflect().SetUnknown(nil)
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(r.Content, m); err != nil {
		return nil, err
	}
	b, err := appendMessage(append(b, `{"message":`...), m)
	if err != nil {
		return nil, err
	}
	b = append(b, `,"deliveries":`...)
	b = jsonline.List(b, r.deliveries, func(b []byte, d Delivery) []byte { return appendDelivery(b, delivery(r.Revision, &d)) })
	return append(b, '}'), nil
}

func appendMessage(b []byte, m *pb.Message) ([]byte, error) {
	b = jsonline.Text(append(b, `{"id":`...), m.Id)
	b = strconv.AppendInt(append(b, `,"revision":`...), m.Revision, 10)
	b = jsonline.Text(append(b, `,"sender":`...), m.Sender)
	b = jsonline.Text(append(b, `,"sender_role":`...), m.SenderRole)
	b = appendTime(append(b, `,"created_at":`...), m.CreatedAt)
	b = appendTime(append(b, `,"expires_at":`...), m.ExpiresAt)
	b = appendTarget(append(b, `,"target":`...), m.Target)
	b = appendEnum(append(b, `,"reach":`...), pb.Reach_name[int32(m.Reach)], "REACH_")
	b = jsonline.Text(append(b, `,"type":`...), m.Type)
	b = jsonline.Text(append(b, `,"version":`...), m.Version)
	b = jsonline.Text(append(b, `,"subject":`...), m.Subject)
	b = jsonline.Text(append(b, `,"body":`...), m.Body)
	b, err := jsonline.Raw(append(b, `,"payload":`...), m.Payload)
	if err != nil {
		return nil, err
	}
	b = strconv.AppendInt(append(b, `,"priority":`...), int64(m.Priority), 10)
	b = jsonline.Text(append(b, `,"channel":`...), m.Channel)
	b = jsonline.Text(append(b, `,"thread_id":`...), m.ThreadId)
	b = jsonline.Text(append(b, `,"correlation_id":`...), m.CorrelationId)
	b = jsonline.Text(append(b, `,"in_reply_to":`...), m.InReplyTo)
	b = jsonline.Text(append(b, `,"task_id":`...), m.TaskId)
	b = appendLabels(append(b, `,"labels":`...), m.Labels)
	b = jsonline.List(append(b, `,"files":`...), m.Files, appendFile)
	b = jsonline.List(append(b, `,"artifacts":`...), m.Artifacts, jsonline.Text)
	b = appendDuration(append(b, `,"ttl":`...), m.Ttl)
	b = appendTime(append(b, `,"not_before":`...), m.NotBefore)
	b = jsonline.Text(append(b, `,"ordering_key":`...), m.OrderingKey)
	b = strconv.AppendInt(append(b, `,"max_attempts":`...), int64(m.MaxAttempts), 10)
	b = strconv.AppendBool(append(b, `,"requires_response":`...), m.RequiresResponse)
	b = appendTime(append(b, `,"response_deadline":`...), m.ResponseDeadline)
	b = appendDuration(append(b, `,"resend_after":`...), m.ResendAfter)
	return append(b, '}'), nil
}

func appendDelivery(b []byte, d *pb.Delivery) []byte {
	b = jsonline.Text(append(b, `{"mailbox":`...), d.Mailbox)
	b = appendEnum(append(b, `,"state":`...), pb.DeliveryState_name[int32(d.State)], "DELIVERY_STATE_")
	b = strconv.AppendInt(append(b, `,"arrival":`...), d.Arrival, 10)
	b = strconv.AppendInt(append(b, `,"attempts":`...), int64(d.Attempts), 10)
	b = strconv.AppendInt(append(b, `,"max_attempts":`...), int64(d.MaxAttempts), 10)
	b = jsonline.Text(append(b, `,"claim_id":`...), d.ClaimId)
	b = jsonline.Text(append(b, `,"holder":`...), d.Holder)
	b = jsonline.Text(append(b, `,"consumer":`...), d.Consumer)
	b = appendTime(append(b, `,"claimed_at":`...), d.ClaimedAt)
	b = appendTime(append(b, `,"delivered_at":`...), d.DeliveredAt)
	b = appendTime(append(b, `,"read_at":`...), d.ReadAt)
	b = appendTime(append(b, `,"finished_at":`...), d.FinishedAt)
	b = appendTime(append(b, `,"due_at":`...), d.DueAt)
	b = jsonline.List(append(b, `,"history":`...), d.History, appendAttempt)
	b = jsonline.Text(append(b, `,"acked_by":`...), d.AckedBy)
	return append(b, '}')
}

func appendAttempt(b []byte, a *pb.Attempt) []byte {
	b = strconv.AppendInt(append(b, `{"number":`...), int64(a.Number), 10)
	b = jsonline.Text(append(b, `,"agent":`...), a.Agent)
	b = jsonline.Text(append(b, `,"consumer":`...), a.Consumer)
	b = appendTime(append(b, `,"claimed_at":`...), a.ClaimedAt)
	b = appendTime(append(b, `,"ended_at":`...), a.EndedAt)
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
