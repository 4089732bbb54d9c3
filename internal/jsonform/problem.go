package jsonform

import (
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The classes of errors. The code of a Problem is one of them.
const (
	Usage       = "usage"       // the request is wrong
	NotFound    = "not_found"   // a named thing does not exist
	Conflict    = "conflict"    // the state of the broker forbids the call
	Lost        = "lost"        // the caller does not hold the claim, lock or token
	Denied      = "denied"      // the caller may not make the call
	Unreachable = "unreachable" // the broker cannot serve now
	Failed      = "error"       // every other error
)

// A Problem is an error as a client reads it.
type Problem struct {
	Code       string         `json:"code"`             // a class
	Reason     string         `json:"reason,omitempty"` // the broker's stable name of the error
	Message    string         `json:"message"`
	Fields     []ProblemField `json:"fields,omitempty"`
	RetryAfter string         `json:"retry_after,omitempty"` // in seconds, such as 1.2s

	Retry time.Duration `json:"-"` // RetryAfter as a duration
}

// A ProblemField is one field of the request that the broker refused.
type ProblemField struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// NewProblem returns the form of an answer that is an error.
func NewProblem(s *status.Status) Problem {
	p := Problem{Message: s.Message()}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			p.Reason = d.GetReason()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				p.Fields = append(p.Fields, ProblemField{v.GetField(), v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			p.Retry = d.GetRetryDelay().AsDuration()
		}
	}
	if p.Retry > 0 {
		p.RetryAfter = strconv.FormatFloat(p.Retry.Seconds(), 'f', -1, 64) + "s"
	}
	p.Code = Class(s.Code(), p.Reason)
	return p
}

// reasons are the reasons of the broker whose class differs from that of their code.
var reasons = map[string]string{
	"AGENT_REQUIRED":       Usage,
	"AGENT_NOT_REGISTERED": NotFound,
	"NO_RESPONDERS":        NotFound,
	"TOKEN_NOT_HELD":       Conflict,

	"CLAIM_LOST":        Lost,
	"NO_OPEN_CLAIM":     Lost,
	"LOCK_LOST":         Lost,
	"TASK_LOST":         Lost,
	"TOKEN_LOST":        Lost,
	"FENCE_LOST":        Lost,
	"STALE_INCARNATION": Lost,
}

// Class returns the class of an error with a code and a reason.
func Class(code codes.Code, reason string) string {
	if class := reasons[reason]; class != "" {
		return class
	}
	switch code {
	case codes.InvalidArgument:
		return Usage
	case codes.NotFound:
		return NotFound
	case codes.AlreadyExists, codes.Aborted, codes.FailedPrecondition:
		return Conflict
	case codes.PermissionDenied, codes.Unauthenticated:
		return Denied
	case codes.Unavailable:
		return Unreachable
	default:
		return Failed
	}
}
