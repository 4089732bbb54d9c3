package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/fault"
)

func TestKindOf_LooksThroughWrapping(t *testing.T) {
	for name, row := range map[string]struct {
		err  error
		want fault.Kind
	}{
		"none":       {nil, fault.Internal},
		"any error":  {io.EOF, fault.Internal},
		"a context":  {context.Canceled, fault.Internal},
		"a fault":    {fault.New(fault.Denied, "NOT_YOURS", "it is not yours"), fault.Denied},
		"wrapped":    {fmt.Errorf("send: %w", fault.New(fault.Conflict, "TAKEN", "somebody was faster")), fault.Conflict},
		"joined":     {errors.Join(io.EOF, fault.Field("ttl", "is negative")), fault.Invalid},
		"as a cause": {&fault.Error{Kind: fault.Unavailable, Cause: fault.New(fault.Denied, "NO", "no")}, fault.Unavailable},
	} {
		if got := fault.KindOf(row.err); got != row.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestError_TellsThePublicMessageAndKeepsTheCause(t *testing.T) {
	err := &fault.Error{Kind: fault.Unavailable, Message: "the disk is full", Cause: io.ErrShortWrite}
	if err.Error() != "the disk is full" || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%q, cause %v", err, errors.Unwrap(err))
	}
}

func TestNew_FormatsTheMessage(t *testing.T) {
	want := &fault.Error{Kind: fault.Exists, Reason: "NAME_TAKEN", Message: `"a" is taken`}
	if diff := cmp.Diff(want, fault.New(fault.Exists, "NAME_TAKEN", "%q is taken", "a")); diff != "" {
		t.Error(diff)
	}
}

func TestFields_NamesEveryViolation(t *testing.T) {
	violations := []fault.Violation{{Field: "priority", Description: "is 11; 1 to 10 is allowed"}, {Field: "type", Description: "is empty"}}
	want := &fault.Error{
		Kind: fault.Invalid, Reason: "INVALID_ARGUMENT", Violations: violations,
		Message: "priority: is 11; 1 to 10 is allowed; type: is empty",
	}
	if diff := cmp.Diff(want, fault.Fields(violations)); diff != "" {
		t.Error(diff)
	}
	if e := fault.Fields(nil); e != nil {
		t.Errorf("without violations: %v", e)
	}
	one := fault.Field("page", "is %d", 7)
	if diff := cmp.Diff([]fault.Violation{{Field: "page", Description: "is 7"}}, one.Violations); diff != "" {
		t.Error(diff)
	}
}

func TestMissing_NamesTheResource(t *testing.T) {
	e := fault.Missing("agent", "bob", "no agent %q", "bob")
	want := &fault.Error{Kind: fault.NotFound, Reason: "AGENT_NOT_FOUND", Message: `no agent "bob"`, Resource: "agent", Name: "bob"}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Error(diff)
	}
}

func TestWith_AddsFacts(t *testing.T) {
	e := fault.New(fault.OutOfRange, "COMPACTED", "gone").With("oldest", "7").With("newest", "9")
	if diff := cmp.Diff(map[string]string{"oldest": "7", "newest": "9"}, e.Metadata); diff != "" {
		t.Error(diff)
	}
}
