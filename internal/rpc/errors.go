package rpc

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
)

// domain is the domain of every ErrorInfo.
const domain = "brokerd.v1"

// reasonTrailer is the trailer with the reason of a refused call.
const reasonTrailer = "brokerd-reason"

// maxErrorText bounds, in bytes, the message of an error, the list of its violations, its metadata, and the
// name of its resource. All travel in HTTP/2 headers, the message twice, and some clients accept no more
// than 8 KiB of those.
const maxErrorText = 1024

// maxName bounds, in bytes, a reason, the kind of a resource, and the name of a fact of an error.
const maxName = 128

// defect is all that a caller is told about an error that is no fault.
const defect = "the broker failed at this call; its log says why"

// table says which code a kind becomes.
var table = map[fault.Kind]codes.Code{
	fault.Internal:        codes.Internal,
	fault.Invalid:         codes.InvalidArgument,
	fault.NotFound:        codes.NotFound,
	fault.Exists:          codes.AlreadyExists,
	fault.Precondition:    codes.FailedPrecondition,
	fault.Conflict:        codes.Aborted,
	fault.Denied:          codes.PermissionDenied,
	fault.Unauthenticated: codes.Unauthenticated,
	fault.Exhausted:       codes.ResourceExhausted,
	fault.OutOfRange:      codes.OutOfRange,
	fault.Unavailable:     codes.Unavailable,
	fault.Canceled:        codes.Canceled,
	fault.Deadline:        codes.DeadlineExceeded,
}

// Error returns the gRPC status error for what a feature returned: nil for nil, the code and details of
// the fault in its chain, gRPC's own errors (of a broken stream, of a frame that is too big) as they are,
// and INTERNAL without the text for anything else.
func Error(err error) error {
	if err == nil {
		return nil
	}
	if s := transportStatus(err); s != nil {
		return s.Err()
	}
	e := public(err)
	s := status.New(table[e.Kind], clip(e.Message))
	detailed, err := s.WithDetails(details(e)...)
	if err != nil {
		return s.Err() // without details rather than without an answer
	}
	return detailed.Err()
}

// ItemError returns the in-band form of the same error, for one item of a stream; nil for nil.
func ItemError(err error) *pb.ItemError {
	if err == nil {
		return nil
	}
	if s := transportStatus(err); s != nil {
		return &pb.ItemError{Code: int32(s.Code()), Reason: "TRANSPORT", Message: s.Message()}
	}
	e := public(err)
	item := &pb.ItemError{Code: int32(table[e.Kind]), Reason: e.Reason, Message: clip(e.Message)}
	if len(e.Violations) > 0 {
		item.Field = e.Violations[0].Field
	}
	if e.RetryAfter > 0 {
		item.RetryAfter = durationpb.New(e.RetryAfter)
	}
	return item
}

// Reason returns the reason that the caller is told of an error; TRANSPORT for one of gRPC itself, nothing for nil.
func Reason(err error) string {
	switch {
	case err == nil:
		return ""
	case transportStatus(err) != nil:
		return "TRANSPORT"
	}
	return public(err).Reason
}

// public returns what the caller may know of an error.
func public(err error) *fault.Error {
	var e *fault.Error
	switch {
	case errors.As(err, &e) && e.Kind != fault.Internal:
		return e
	case e != nil:
		return &fault.Error{Kind: fault.Internal, Reason: e.Reason, Message: defect}
	case errors.Is(err, context.Canceled):
		return fault.New(fault.Canceled, "CANCELED", "the caller gave up")
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Deadline, "DEADLINE_EXCEEDED", "the caller's deadline passed")
	}
	return &fault.Error{Kind: fault.Internal, Reason: "INTERNAL", Message: defect}
}

// transportStatus returns the status that gRPC itself gave the error, if there is no fault in its chain.
func transportStatus(err error) *status.Status {
	var e *fault.Error
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &e) || !errors.As(err, &s) {
		return nil
	}
	return s.GRPCStatus()
}

func details(e *fault.Error) []protoadapt.MessageV1 {
	list := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: clipTo(e.Reason, maxName), Domain: domain, Metadata: facts(e.Metadata)}}
	if len(e.Violations) > 0 {
		list = append(list, violations(e.Violations))
	}
	if e.RetryAfter > 0 {
		list = append(list, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	if e.Resource != "" {
		list = append(list, &errdetails.ResourceInfo{ResourceType: clipTo(e.Resource, maxName), ResourceName: clip(e.Name)})
	}
	return list
}

// facts returns the metadata of an error, as much as fits. A fact that is clipped ends in …
func facts(all map[string]string) map[string]string {
	if len(all) == 0 {
		return nil
	}
	kept, left := make(map[string]string, len(all)), maxErrorText
	for _, key := range slices.Sorted(maps.Keys(all)) {
		name := clipTo(key, maxName)
		value := clipTo(all[key], max(left-len(name), maxName))
		if left -= len(name) + len(value); left < 0 && len(kept) > 0 {
			break
		}
		kept[name] = value
	}
	return kept
}

// violations lists the first ones, as many as fit, and at least one.
func violations(all []fault.Violation) *errdetails.BadRequest {
	bad := &errdetails.BadRequest{}
	size := 0
	for i, v := range all {
		size += len(v.Field) + len(v.Description)
		if size > maxErrorText && i > 0 {
			break
		}
		bad.FieldViolations = append(bad.FieldViolations,
			&errdetails.BadRequest_FieldViolation{Field: clip(v.Field), Description: clip(v.Description)})
	}
	return bad
}

// clip shortens a text to maxErrorText and makes sure that it can travel: it may quote what a caller sent.
func clip(text string) string { return clipTo(text, maxErrorText) }

// clipTo is clip for another bound.
func clipTo(text string, most int) string {
	if len(text) > most {
		text = text[:most-len("…")] + "…"
	}
	return strings.ToValidUTF8(text, "")
}
