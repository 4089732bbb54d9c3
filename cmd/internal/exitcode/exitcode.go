// Package exitcode has the exit codes that the programs share for an answer of the API.
package exitcode

import (
	"google.golang.org/grpc/codes"

	"brokerd/internal/jsonform"
)

// The exit codes. docs/json.md explains them.
const (
	Done        = 0
	Error       = 1
	Usage       = 2
	NotFound    = 3
	Conflict    = 5
	Lost        = 6
	Denied      = 7
	Unreachable = 69
)

// classes are the exit codes of the classes of the API's errors.
var classes = map[string]int{
	jsonform.Usage:       Usage,
	jsonform.NotFound:    NotFound,
	jsonform.Conflict:    Conflict,
	jsonform.Lost:        Lost,
	jsonform.Denied:      Denied,
	jsonform.Unreachable: Unreachable,
	jsonform.Failed:      Error,
}

// Of returns the exit code of an answer of the API with a code and the reason of its ErrorInfo.
func Of(code codes.Code, reason string) int {
	if code == codes.OK {
		return Done
	}
	return classes[jsonform.Class(code, reason)]
}
