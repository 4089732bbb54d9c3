// Package rules checks the fields of requests by the options of the API's .proto files:
//
//	string reason = 3 [(rule) = {line: 512, required: true}];
//
// Rule in rules.proto has all options and what they mean. A Set makes one list of checks per kind of message, once.
// A Message walks its list over a request, nested and repeated messages included, and names every violation with
// the path of its field. The checks are those of package validate, so the error texts are the same as of a check by hand.
//
// Package rpc checks every request of a unary call, and the request of a call that answers with a stream, after
// identity and access and before the service. So a service has rules across fields only, and those that need more
// than the request. A service that receives a stream of requests checks each of them with Check.
//
// The messages of ByHand are checked by hand, because the walk would cost too much on the path of every message.
// So is the header of an upload, a frame of a stream. They have options as well, for the documents and for the test
// that compares both.
package rules
