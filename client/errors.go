package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// errorDomain is the domain of the broker's ErrorInfo details.
const errorDomain = "brokerd.v1"

// ErrSilent is the cause of an UnreachableError if a process accepts connections but does not
// answer as a broker.
var ErrSilent = errors.New("connections are accepted but not answered")

// ErrNoBroker is the cause of an UnreachableError if the program that listens at the address does not speak HTTP/2.
var ErrNoBroker = errors.New("another program than a broker listens there")

// ErrOtherUser is the cause of an UnreachableError if the broker's Unix socket belongs to another user:
// a broker serves only its own user there.
var ErrOtherUser = errors.New("its socket serves only its own user")

// otherUser is an ErrOtherUser with the id of the broker's user.
type otherUser int

func (e otherUser) Error() string {
	return fmt.Sprintf("belongs to user %d, and its socket serves only that user; this is user %d: act as that user, or "+
		"name a TCP address of the broker with BROKERD_ADDR, and a credential with BROKERD_CREDENTIAL_FILE",
		int(e), os.Geteuid())
}

func (e otherUser) Is(target error) bool { return target == ErrOtherUser }

// An AddressError says why a client cannot connect to an address.
type AddressError struct {
	Address string
	Problem string
}

// Error names the address and the problem.
func (e *AddressError) Error() string { return fmt.Sprintf("address %q %s", e.Address, e.Problem) }

// An UnreachableError says that no broker answers. Its gRPC code is UNAVAILABLE. errors.Is tells
// the causes apart: fs.ErrNotExist (there is no endpoint file or no socket), syscall.ECONNREFUSED
// (the broker has ended), ErrSilent (its process is frozen or overloaded), ErrNoBroker, ErrOtherUser. errors.As finds a
// *TLSError.
type UnreachableError struct {
	Address string // where the client looked for it: an address, or the data folder if the client found none
	Err     error
	PID     int // ErrSilent: the process that listens at a Unix socket; 0 = unknown
}

// Error states the cause and what to do about it.
func (e *UnreachableError) Error() string {
	const start = "start one with `brokerctl up`, or name another with BROKERD_ADDR"
	switch {
	case errors.As(e.Err, new(*TLSError)), errors.Is(e.Err, ErrOtherUser):
		return fmt.Sprintf("the broker at %s %v", e.Address, e.Err)
	case errors.Is(e.Err, ErrNoBroker):
		return fmt.Sprintf("%s is not the address of a broker: another program listens there; "+
			"BROKERD_ADDR names the broker", e.Address)
	case errors.Is(e.Err, ErrSilent):
		process, advice := "its process", "see its log, or restart it"
		if e.PID > 0 {
			process = fmt.Sprintf("process %d", e.PID)
			advice = fmt.Sprintf("`kill -CONT %d` continues a frozen process; otherwise %s", e.PID, advice)
		}
		return fmt.Sprintf("the broker at %s does not answer: "+
			"%s is frozen or overloaded, or it is just starting or ending; %s", e.Address, process, advice)
	case errors.Is(e.Err, syscall.ECONNREFUSED) && strings.HasPrefix(e.Address, "unix:"):
		return fmt.Sprintf("the broker at %s has ended (its socket refuses connections); %s", e.Address, start)
	case errors.Is(e.Err, fs.ErrNotExist), errors.Is(e.Err, syscall.ECONNREFUSED):
		return fmt.Sprintf("no broker is running at %s (%v); %s", e.Address, e.Err, start)
	default:
		return fmt.Sprintf("the broker at %s cannot be reached: %v; BROKERD_ADDR names another", e.Address, e.Err)
	}
}

// noEndpoint says why a data folder does not lead to a broker. It is an fs.ErrNotExist.
type noEndpoint string

func (e noEndpoint) Error() string        { return string(e) }
func (e noEndpoint) Is(target error) bool { return target == fs.ErrNotExist }

// Unwrap returns what the attempt ended with.
func (e *UnreachableError) Unwrap() error { return e.Err }

// GRPCStatus makes status.Code work.
func (e *UnreachableError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}

// An ItemError says why the broker refused one item of a stream. It carries a gRPC status: status.Code, Reason,
// Fields and RetryDelay work on it as on the error of a call.
type ItemError struct {
	Index      int // place of the item among those given to the call
	Code       codes.Code
	Reason     string // UPPER_SNAKE, stable
	Message    string
	Field      string // the field at fault, if one is
	RetryAfter time.Duration
}

// Error returns the code and the broker's message.
func (e *ItemError) Error() string { return fmt.Sprintf("%v: %s", e.Code, e.Message) }

// GRPCStatus returns the status that the item would have had as a call of its own.
func (e *ItemError) GRPCStatus() *status.Status {
	s := status.New(e.Code, e.Message)
	if e.Code == codes.OK {
		return status.New(codes.Unknown, e.Message)
	}
	if d, err := s.WithDetails(&errdetails.ErrorInfo{Reason: e.Reason, Domain: errorDomain}); err == nil {
		s = d
	}
	if e.Field != "" {
		violation := &errdetails.BadRequest_FieldViolation{Field: e.Field, Description: e.Message}
		if d, err := s.WithDetails(&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{violation}}); err == nil {
			s = d
		}
	}
	if e.RetryAfter > 0 {
		if d, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)}); err == nil {
			s = d
		}
	}
	return s
}

// A BatchError says which messages of a batch were refused; the others were sent.
type BatchError struct {
	Items []*ItemError // in order; not empty
	Of    int          // how many messages the batch had
}

// Error tells how many were refused, and why the first was.
func (e *BatchError) Error() string {
	first := e.Items[0]
	return fmt.Sprintf("%d of %d messages refused; messages[%d]: %v", len(e.Items), e.Of, first.Index, first)
}

// Unwrap returns the items' errors.
func (e *BatchError) Unwrap() []error {
	errs := make([]error, len(e.Items))
	for i, item := range e.Items {
		errs[i] = item
	}
	return errs
}

// Reason returns the broker's reason for an error, such as AGENT_NOT_REGISTERED: UPPER_SNAKE and stable.
// It is empty for errors that are not the broker's.
func Reason(err error) string {
	for _, d := range details(err) {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info.GetReason()
		}
	}
	return ""
}

// Resource returns the name of the thing that an error is about, such as that of the agent that does
// not exist; "" if the error names none.
func Resource(err error) string {
	for _, d := range details(err) {
		if info, ok := d.(*errdetails.ResourceInfo); ok {
			return info.GetResourceName()
		}
	}
	return ""
}

// A Field is one field of a request that the broker refused.
type Field struct {
	Name        string // such as messages[3].priority
	Description string // what is wrong and what is allowed
}

// Fields returns the fields at fault of an INVALID_ARGUMENT error.
func Fields(err error) []Field {
	var fields []Field
	for _, d := range details(err) {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, Field{Name: v.GetField(), Description: v.GetDescription()})
			}
		}
	}
	return fields
}

// RetryDelay returns how long to wait before trying again, where the broker says that waiting helps; 0 otherwise.
func RetryDelay(err error) time.Duration {
	for _, d := range details(err) {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

func details(err error) []any {
	s, ok := status.FromError(err)
	if !ok || s == nil {
		return nil
	}
	return s.Details()
}

// itemError converts a stream's answer; nil if there is none.
func itemError(index int, e *pb.ItemError) *ItemError {
	if e == nil {
		return nil
	}
	return &ItemError{
		Index:      index,
		Code:       codes.Code(e.GetCode()),
		Reason:     e.GetReason(),
		Message:    e.GetMessage(),
		Field:      e.GetField(),
		RetryAfter: e.GetRetryAfter().AsDuration(),
	}
}

// unreachable returns the error for a broker that does not answer; fault is the dialFault.
func (l *link) unreachable(fault *error) error {
	if fault == nil || errors.Is(*fault, fs.ErrPermission) {
		if owner := socketOwner(l.address); owner >= 0 && owner != os.Geteuid() {
			return &UnreachableError{Address: l.address, Err: otherUser(owner)}
		}
	}
	switch {
	case fault == nil:
		return &UnreachableError{Address: l.address, Err: ErrSilent, PID: int(l.peer.Load())}
	case errors.Is(*fault, os.ErrDeadlineExceeded), errors.Is(*fault, context.DeadlineExceeded),
		errors.Is(*fault, syscall.EAGAIN): // the queue of connections is full
		return &UnreachableError{Address: l.address, Err: fmt.Errorf("%w: %w", ErrSilent, *fault)}
	}
	return &UnreachableError{Address: l.address, Err: *fault}
}

// transient reports whether a stream that ended with err is worth opening again.
func transient(err error) bool {
	if errors.Is(err, io.EOF) { // the broker ended it in good order, to stop
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Internal, codes.Unknown:
		return true
	case codes.ResourceExhausted:
		return RetryDelay(err) > 0
	default:
		return false
	}
}
