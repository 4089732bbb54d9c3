package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"brokerd/internal/fault"
	"brokerd/internal/rpc"
)

func TestError_EveryKindHasItsCode(t *testing.T) {
	t.Parallel()
	kinds := map[fault.Kind]codes.Code{
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
	for kind := fault.Internal; kind <= fault.Deadline; kind++ {
		want, known := kinds[kind]
		if !known {
			t.Errorf("kind %d is not tested", kind)
		}
		err := fmt.Errorf("do something: %w", fault.New(kind, "SOME_REASON", "what went wrong"))
		expect(t, rpc.Error(err), want, "SOME_REASON", "")
		if item := rpc.ItemError(err); item.GetCode() != int32(want) || item.GetReason() != "SOME_REASON" {
			t.Errorf("kind %d in band: %v", kind, item)
		}
		if kind != fault.Internal && status.Convert(rpc.Error(err)).Message() != "what went wrong" {
			t.Errorf("kind %d: %v", kind, rpc.Error(err))
		}
	}
}

func TestError_NilIsNoError(t *testing.T) {
	t.Parallel()
	if rpc.Error(nil) != nil || rpc.ItemError(nil) != nil {
		t.Error("nil became an error")
	}
}

func TestError_DefectsKeepTheirTextToThemselves(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		errors.New("secret path"),
		io.ErrUnexpectedEOF,
		fault.New(fault.Internal, "INTERNAL", "secret path"),
		fmt.Errorf("open: %w", errors.New("secret path")),
	} {
		expect(t, rpc.Error(err), codes.Internal, "INTERNAL", "")
		item := rpc.ItemError(err)
		for _, text := range []string{status.Convert(rpc.Error(err)).Message(), item.GetMessage()} {
			if strings.Contains(text, "secret") || strings.Contains(text, "EOF") || text == "" {
				t.Errorf("%q", text)
			}
		}
	}
}

func TestError_CausesStayPrivate(t *testing.T) {
	t.Parallel()
	e := fault.New(fault.Unavailable, "DISK_FULL", "the disk is full")
	e.Cause = errors.New("secret path")
	if text := rpc.Error(e).Error(); strings.Contains(text, "secret") {
		t.Error(text)
	}
}

func TestError_EndOfContext(t *testing.T) {
	t.Parallel()
	expect(t, rpc.Error(fmt.Errorf("wait: %w", context.Canceled)), codes.Canceled, "CANCELED", "")
	expect(t, rpc.Error(fmt.Errorf("wait: %w", context.DeadlineExceeded)), codes.DeadlineExceeded, "DEADLINE_EXCEEDED", "")
}

func TestError_WhatGRPCSaidStays(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("receive: %w", status.Error(codes.ResourceExhausted, "frame too big"))
	if s := status.Convert(rpc.Error(err)); s.Code() != codes.ResourceExhausted || s.Message() != "frame too big" {
		t.Error(s)
	}
}

func TestError_Details(t *testing.T) {
	t.Parallel()
	e := fault.Missing("agent", "bilder", "there is no agent bilder").With("nearest", "builder")
	e.RetryAfter = 3 * time.Second
	var info, resource, retry bool
	for _, d := range status.Convert(rpc.Error(e)).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d.GetMetadata()["nearest"] == "builder"
		case *errdetails.ResourceInfo:
			resource = d.GetResourceType() == "agent" && d.GetResourceName() == "bilder"
		case *errdetails.RetryInfo:
			retry = d.GetRetryDelay().AsDuration() == 3*time.Second
		}
	}
	if !info || !resource || !retry {
		t.Error(info, resource, retry)
	}
}

func TestError_NamesFields(t *testing.T) {
	t.Parallel()
	err := fault.Fields([]fault.Violation{{Field: "messages[0].priority", Description: "is 11"}, {Field: "wait", Description: "is negative"}})
	expect(t, rpc.Error(err), codes.InvalidArgument, "INVALID_ARGUMENT", "messages[0].priority wait")
	if item := rpc.ItemError(err); item.GetField() != "messages[0].priority" {
		t.Error(item)
	}
}

// Some clients accept no more than 8 KiB of headers, in which an error travels.
func TestError_ManyViolationsFitIntoHeaders(t *testing.T) {
	t.Parallel()
	var all []fault.Violation
	for i := range 1000 {
		all = append(all, fault.Violation{Field: fmt.Sprintf("messages[%d].subject", i), Description: strings.Repeat("ü", 300)})
	}
	s := status.Convert(rpc.Error(fault.Fields(all)))
	if size := len(s.Message()) + proto.Size(s.Proto())*4/3; size > 6<<10 {
		t.Errorf("%d bytes", size)
	}
	if len(s.Details()) != 2 {
		t.Errorf("%d details", len(s.Details()))
	}
	if n := len(rpc.ItemError(fault.Fields(all)).GetMessage()); n > 1100 {
		t.Errorf("%d bytes in band", n)
	}
}

func TestError_LongNamesAndFactsFitIntoHeaders(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 500_000)
	for name, e := range map[string]*fault.Error{
		"resource": fault.Missing("blocker", long, "there is no blocker %s", long),
		"fact":     fault.New(fault.Conflict, "TAKEN", "%s", long).With("holder", long),
		"facts":    fault.New(fault.Conflict, "TAKEN", "%s", long).With("a", long).With("b", long).With(long, "c"),
		"field":    fault.Field(long, "%s", long),
		"all":      fault.Missing("task", long, "%s", long).With("holder", long).With("nearest", long),
	} {
		s := status.Convert(rpc.Error(e))
		if size := len(url.PathEscape(s.Message())) + proto.Size(s.Proto())*4/3; size > 8<<10 {
			t.Errorf("%s: %d bytes of headers", name, size)
		}
		for _, d := range s.Details() {
			if bad, failed := d.(error); failed {
				t.Errorf("%s: %v", name, bad)
			}
		}
	}
	e := fault.Missing("agent", "bilder", "none").With("nearest", "builder").With("z", strings.Repeat("x", 4000))
	for _, d := range status.Convert(rpc.Error(e)).Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if ok && (info.Metadata["nearest"] != "builder" || !strings.HasSuffix(info.Metadata["z"], "…")) {
			t.Errorf("the metadata is %v", info.Metadata)
		}
	}
}
