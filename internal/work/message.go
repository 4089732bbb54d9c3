package work

import (
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/jsonform"
)

// Word returns a value of an enum of the API as events, payloads and brokerctl spell it, such as pending
// for HANDOFF_STATE_PENDING; empty for the unset value.
func Word(e protoreflect.Enum) string { return jsonform.EnumName(e.Descriptor(), e.Number()) }

// Stamp returns a time of the API; absent for the zero time.
func Stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Time returns a time of the API as the rules have it; zero for an absent one.
func Time(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// Answer returns the answer of a call, or its error.
func Answer[A any](err error, answer *A) (*A, error) {
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// States returns the numbers of the states in a request for a list.
func States[E protoreflect.Enum](states []E) []protoreflect.EnumNumber {
	numbers := make([]protoreflect.EnumNumber, len(states))
	for i, s := range states {
		numbers[i] = s.Number()
	}
	return numbers
}

// dropUnknown removes the fields that this broker does not know from a message and those in it: no limit
// bounds them.
func dropUnknown(m protoreflect.Message) {
	m.SetUnknown(nil)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				dropUnknown(v.List().Get(i).Message())
			}
		default:
			dropUnknown(v.Message())
		}
		return true
	})
}

// textsIn passes the texts in a message to a function.
func textsIn(m protoreflect.Message, each func(text string)) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		one := func(v protoreflect.Value) {
			switch f.Kind() {
			case protoreflect.StringKind:
				each(v.String())
			case protoreflect.MessageKind:
				textsIn(v.Message(), each)
			default:
			}
		}
		switch {
		case f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				one(v.List().Get(i))
			}
		default:
			one(v)
		}
		return true
	})
}
