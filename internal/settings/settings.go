// Package settings has one table of the settings of sessions: the default of each, the values that a caller may
// give it, and its text for people. The settings of a session are a pb.SessionSettings, which the broker stores
// as it is, and which every other package reads through its getters.
//
// A new setting is a field of the message, a row of All, and its use. Sessions that were stored before it have
// its default.
package settings

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/validate"
)

const (
	kib, gib = 1 << 10, 1 << 30
	day      = 24 * time.Hour
	million  = 1_000_000
)

// All are the settings, in the order of their fields: the name, the default, the smallest and the largest value,
// and the text.
var All = []Setting{
	durationOrZero("ageing", 5*time.Minute, time.Second, day,
		"waiting this long raises a message's priority by 1; 0: never"),
	number("mailbox_limit", 10_000, 0, 10*million, "deliveries that may wait in one mailbox; 0: no limit"),
	number("max_attempts", 3, 1, 100, "failed attempts until a message becomes a dead letter"),
	rate("send_rate", 10, leastRate, million, "messages that an agent may send per second; 0: no limit"),
	number("send_burst", 100, 1, million, "messages that it may send at once after a pause"),
	number("message_limit", 1024*kib, 1*kib, 1024*kib, "bytes of one message"),
	number("payload_limit", 256*kib, 1, 256*kib, "bytes of one payload"),
	number("breaker_failures", 5, 0, 1000, "failures in a row that open an agent's circuit breaker; 0: never"),
	duration("breaker_time", time.Minute, time.Second, day, "how long the breaker stays open"),
	duration("response_time", 10*time.Minute, time.Second, 365*day, "time for a response if the message sets none"),
	roles("escalate_to", []string{"overseer", "lead", "orchestrator", "project_manager"},
		"role that stuck work is escalated to; repeated: the first one with an agent; '': none"),
	roles("directors", []string{"lead", "overseer", "orchestrator", "project_manager"},
		"role that may send directives; repeatable; '': only operators may"),
	durationOrZero("message_retention", 3*day, time.Second, 3650*day, "how long finished messages are kept; 0: always"),
	durationOrZero("event_retention", 7*day, time.Second, 3650*day, "how long events are kept; 0: always"),
	durationOrZero("dead_letter_retention", 30*day, time.Second, 3650*day, "how long dead letters are kept; 0: always"),
	flag("fold_case", "ignore case in the paths of locks; can change while no path is locked"),
	durationOrZero("stale_after", 2*time.Hour, time.Second, 30*day,
		"time until a task that its holder does not update is released; 0: never"),
	durationOrZero("blocker_escalation", 15*time.Minute, time.Second, 30*day,
		"time until a blocker that no agent acknowledges escalates; 0: never"),
	policy("unknown_types", "messages of unknown types: allow, warn or refuse"),
	policy("invalid_payloads", "payloads that do not match their type: allow, warn or refuse"),
	number("artifact_limit", 4*gib, 1, 4*gib, "bytes of one artifact"),
	number("artifact_total_limit", 64*gib, 0, 64*1024*gib, "bytes of all artifacts; 0: no limit"),
}

// Default returns the settings of a new session. Like all settings that this package returns, they are read only,
// since they share messages with others.
func Default() *pb.SessionSettings {
	s := &pb.SessionSettings{}
	complete(s, func(s Setting) protoreflect.Value { return s.initial })
	return s
}

// Parse returns stored settings. A setting that is not stored has its default.
func Parse(stored []byte) (*pb.SessionSettings, error) {
	s := &pb.SessionSettings{}
	err := proto.Unmarshal(stored, s)
	complete(s, func(s Setting) protoreflect.Value { return s.initial })
	return s, err
}

// With returns settings with a change made to them. A setting that the change does not have stays as it is.
func With(s, change *pb.SessionSettings) *pb.SessionSettings {
	now := &pb.SessionSettings{}
	proto.Merge(now, change)
	fields := now.ProtoReflect()
	fields.SetUnknown(nil)
	fields.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Message() != nil {
			v.Message().SetUnknown(nil)
		}
		return true
	})
	before := s.ProtoReflect()
	complete(now, func(s Setting) protoreflect.Value { return before.Get(s.Field) })
	return now
}

// complete sets the settings that are not set.
func complete(to *pb.SessionSettings, value func(Setting) protoreflect.Value) {
	m := to.ProtoReflect()
	for _, s := range All {
		if !m.Has(s.Field) {
			m.Set(s.Field, value(s))
		}
	}
}

// Check checks the settings that a request has in its field "settings".
func Check(c *validate.Check, given *pb.SessionSettings) {
	m := given.ProtoReflect()
	for _, s := range All {
		if m.Has(s.Field) && s.check != nil {
			s.check(c, "settings."+string(s.Field.Name()), m.Get(s.Field))
		}
	}
}

// Details returns the settings as the details of an event have them: durations in seconds.
func Details(s *pb.SessionSettings) map[string]any {
	details := map[string]any{}
	for _, setting := range All {
		name := string(setting.Field.Name())
		value := setting.plain(s.ProtoReflect().Get(setting.Field))
		if d, ok := value.(time.Duration); ok {
			name = strings.TrimSuffix(strings.TrimSuffix(name, "_time"), "_after") + "_seconds"
			value = d.Seconds()
		}
		details[name] = value
	}
	return details
}

// plain returns a value as Go has it: a time.Duration, a list of names, the short name of a policy, a number or a
// bool.
func (s Setting) plain(v protoreflect.Value) any {
	switch v := v.Interface().(type) {
	case protoreflect.Message:
		if d, ok := v.Interface().(*durationpb.Duration); ok {
			return d.AsDuration()
		}
		return v.Interface().(*pb.Names).GetNames()
	case protoreflect.EnumNumber:
		return jsonform.EnumName(s.Field.Enum(), v)
	default:
		return v
	}
}
