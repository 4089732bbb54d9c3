package engine

import (
	"errors"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/mailfile"
)

// Refused returns a refusal for an answer of the broker that a repetition does not change, and other errors as
// they are. The errors that passes and final name are the only ones for which a file waits.
func Refused(err error) error {
	var answer interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &answer) || passes(err) || final(err) {
		return err
	}
	return mailfile.Refusal(ownTerms.Replace(answer.GRPCStatus().Message())) // without the texts that wrap it
}

// ownTerms removes from a message of the broker the names of requests that the writer of a file has not made.
var ownTerms = strings.NewReplacer("messages[0].", "", "brokerd-agent: ", "")

// passes reports whether the cause of an error ends without a change of the file.
func passes(err error) bool {
	s, answered := status.FromError(err)
	if !answered {
		return false // an error of the folder
	}
	switch s.Code() {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.Canceled:
		return true
	case codes.Internal, codes.Unknown:
		// A broken connection. The broker names a reason for its defects; gRPC cannot write a text that is
		// not UTF-8.
		return client.Reason(err) == "" && !strings.Contains(s.Message(), "error while marshaling")
	case codes.ResourceExhausted: // a rate, a quota or a disk, but not the size of the message
		return client.RetryDelay(err) > 0 || client.Reason(err) == "DISK_NEARLY_FULL"
	case codes.FailedPrecondition: // the agent has been registered again, or deregistered
		reason := client.Reason(err)
		return reason == "STALE_INCARNATION" || reason == "AGENT_NOT_REGISTERED"
	}
	return false
}

// final reports whether the bridge cannot work with the broker at all.
func final(err error) bool {
	switch client.Reason(err) {
	case "SESSION_NOT_FOUND", "SESSION_CLOSED", "OPERATOR_ONLY":
		return true
	}
	return status.Code(err) == codes.Unauthenticated
}

// statusPrefix is what gRPC writes before the message of an error.
var statusPrefix = regexp.MustCompile(`rpc error: code = \w+ desc = `)

// Plain returns the text of an error for people, as one line.
func Plain(err error) string {
	return strings.ReplaceAll(statusPrefix.ReplaceAllString(err.Error(), ""), "\n", "; ")
}
