package client

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// WithPatience has the client make a unary call again that found the broker away, as when the broker restarts or
// another replica takes the lead, until the broker has been away for so long. Then the call ends with UNAVAILABLE. A request
// gets a request id if it has a place for one, so that a change is made once. What changes something without one, such
// as ClaimMessages, may be done twice; the second claim has what the first one has claimed. A wait ends when it would
// have ended without the loss. The context of a call bounds all of it. Dial is not patient: see WithWait. 0, the
// default, makes each call once.
func WithPatience(most time.Duration) Option {
	return func(o *options) { o.patience = most }
}

// patiently makes a call until it is answered, or the broker has been away for too long.
func (l *link) patiently(ctx context.Context, request any, call func(request any) error) error {
	m, ok := request.(proto.Message)
	if l.patience <= 0 || !ok {
		return call(request)
	}
	m = withRequestID(m)
	wait, again := waitOf(m), retry{link: l}
	began := time.Now()
	var away time.Time // since when, as far as is known
	for {
		attempt := time.Now()
		err := call(waitsLess(m, time.Since(began)))
		if !brokerAway(err) {
			return err
		}
		if away.IsZero() || waited(wait, time.Since(attempt), err) {
			away = time.Now()
			again.worked()
		}
		if time.Since(away) > l.patience || time.Since(began) > wait+l.patience || !again.wait(ctx, err) {
			return err
		}
	}
}

// waited reports whether an attempt may have waited at the broker before it was lost.
func waited(wait, took time.Duration, err error) bool {
	reason := Reason(err)
	return wait > 0 && took > longestDelay && (reason == "" || reason == "SHUTTING_DOWN")
}

// brokerAway reports whether a call found no broker, or one that ends or has just lost its database.
func brokerAway(err error) bool {
	if status.Code(err) != codes.Unavailable {
		return false
	}
	switch Reason(err) {
	case "", "SHUTTING_DOWN", "NO_LEADER", "DATABASE_LOST", "DATABASE_BUSY", "SYNC_FAILED":
		return true
	}
	return false
}

// withRequestID returns a request with a request id, if it can have one.
func withRequestID(m proto.Message) proto.Message {
	field := m.ProtoReflect().Descriptor().Fields().ByName("request_id")
	if field == nil || field.Kind() != protoreflect.StringKind || m.ProtoReflect().Has(field) {
		return m
	}
	m = proto.Clone(m) // it is the caller's
	m.ProtoReflect().Set(field, protoreflect.ValueOfString(requestID()))
	return m
}

// waitOf returns how long a request waits; 0 if it has no wait.
func waitOf(m proto.Message) time.Duration {
	if r, waits := m.(interface{ GetWait() *durationpb.Duration }); waits {
		return r.GetWait().AsDuration()
	}
	return 0
}

// waitsLess returns a request that waits for so much less, but still waits if it did before.
func waitsLess(m proto.Message, less time.Duration) proto.Message {
	wait := waitOf(m)
	if wait == 0 || less < time.Millisecond {
		return m
	}
	m = proto.Clone(m)
	left := durationpb.New(max(wait-less, time.Millisecond))
	field := m.ProtoReflect().Descriptor().Fields().ByName("wait")
	m.ProtoReflect().Set(field, protoreflect.ValueOfMessage(left.ProtoReflect()))
	return m
}
