package testkit

import (
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// Call writes a call of a finding or of a work item in short: the agent in whose name it is made, the method, the
// request, and the fields that it misses, such as builder-1: ReleaseTask {"id":"t"} reason.
func Call(c *pb.Call) string {
	method := c.GetMethod()[strings.LastIndexByte(c.GetMethod(), '/')+1:]
	words := append([]string{method, c.GetRequest()}, c.GetMissing()...)
	if c.GetAgent() != "" {
		words = append([]string{c.GetAgent() + ":"}, words...)
	}
	if len(c.GetProgram()) > 0 {
		words = append(append(words, "--"), c.GetProgram()...)
	}
	return strings.Join(words, " ")
}

// Calls writes each call in short.
func Calls(calls []*pb.Call) []string {
	var all []string
	for _, c := range calls {
		all = append(all, Call(c))
	}
	return all
}
