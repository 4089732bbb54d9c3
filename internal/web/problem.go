package web

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/internal/jsonform"
	"brokerd/internal/rpc"
)

// clientGone is the status of a request whose client has closed the connection. Only logs show it.
const clientGone = 499

// statuses are the HTTP statuses of the codes of gRPC.
var statuses = map[codes.Code]int{
	codes.Canceled:           clientGone,
	codes.InvalidArgument:    http.StatusBadRequest,
	codes.DeadlineExceeded:   http.StatusGatewayTimeout,
	codes.NotFound:           http.StatusNotFound,
	codes.AlreadyExists:      http.StatusConflict,
	codes.PermissionDenied:   http.StatusForbidden,
	codes.ResourceExhausted:  http.StatusTooManyRequests,
	codes.FailedPrecondition: http.StatusConflict,
	codes.Aborted:            http.StatusConflict,
	codes.OutOfRange:         http.StatusBadRequest,
	codes.Unimplemented:      http.StatusNotImplemented,
	codes.Unavailable:        http.StatusServiceUnavailable,
	codes.Unauthenticated:    http.StatusUnauthorized,
}

// reasons are the HTTP statuses of reasons whose status differs from that of their code.
var reasons = map[string]int{
	"MESSAGE_TOO_LARGE": http.StatusRequestEntityTooLarge,
	"TOO_MANY_ITEMS":    http.StatusRequestEntityTooLarge,
	"BODY_TIMEOUT":      http.StatusRequestTimeout,
	"OFFSET_TOO_LARGE":  http.StatusRequestedRangeNotSatisfiable,
}

// fail answers a request with the error of a call.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	answer, _ := status.FromError(err)
	p := jsonform.NewProblem(answer)
	code, known := statuses[answer.Code()]
	if !known {
		code = http.StatusInternalServerError
	}
	if special := reasons[p.Reason]; special != 0 {
		code = special
	}
	if p.Reason == "STATE_CHANGED" && r.Header.Get(matchHeader) != "" {
		code = http.StatusPreconditionFailed
	}
	explain(w, code, p)
}

// refuse answers a request that reaches no RPC.
func refuse(w http.ResponseWriter, code int, err error) {
	answer, _ := status.FromError(rpc.Error(err))
	explain(w, code, jsonform.NewProblem(answer))
}

// Refusal answers every request with the error that why returns.
func Refusal(why func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fail(w, r, rpc.Error(why()))
	})
}

// explain writes a problem.
func explain(w http.ResponseWriter, code int, p jsonform.Problem) {
	if code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="brokerd"`)
	}
	if p.Retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(p.Retry.Seconds()))))
	}
	send(w, code, problemJSON(p))
}

// problemJSON returns the JSON form of a problem.
func problemJSON(p jsonform.Problem) *bytes.Buffer {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(map[string]jsonform.Problem{"error": p}) // texts always encode
	b.Truncate(b.Len() - 1)                               // the newline that Encode adds
	return &b
}
