// Package messagesrpc is the API of messages and channels: the gRPC services MessageService and
// ChannelService, over the packages mail, broker, backlog and router and those around them.
//
// # What it does
//
// A call goes through four steps. The service checks the request, field by field, and refuses it with all
// violations at once. It converts the request into the types of the core, such as a mail.Draft or a
// broker.Wish. It calls one method of the core, or of a package around it, which decides. It converts the
// result into the answer. The package keeps no data and makes no decision about messages, so its files follow the requests:
//
//	service.go               the service, and the unary calls that send, claim, settle, get and list
//	service_stream.go        the streams Send, Receive and Claim
//	wire.go                  the usual frames of Send and Claim, read as bytes
//	wire_answers.go          their usual answers, written as bytes
//	service_conversation.go  questions, replies, threads
//	service_deadletters.go   dead letters
//	service_offers.go        offers to coding agents
//	service_views.go         mailboxes and threads
//	service_channel.go       the channels
//	service_convert.go       the checks and conversions that several of these need, and the limits
//	service_line.go          lines of JSON for the archive, with service_record.go
//
// # Contents
//
// The service decodes a message once, when it is sent. It sets defaults in it: that is the content, which the core stores
// and never decodes. For a delivery, the content follows the fields of the broker, as bytes.
//
// A call marshals the message again. A plain message of a Send stream is not even unmarshalled: its content is what
// the client has sent, with the defaults behind it. The order of the fields may differ, and the form of some; the
// meaning does not. The function draft checks both kinds of message.
//
// # Frames
//
// These types stand in for the requests and answers of protobuf in RecvMsg and SendMsg:
//
//	sendFrame      a SendRequest       sendAnswer     a SendResponse
//	claimFrame     a ClaimRequest      deliverAnswer  a ClaimResponse with deliver
//	                                   settledAnswer  a ClaimResponse with results
//
// Package rpc asks such a request to read its bytes, and has protobuf decode it if it does not: a frame with a fault,
// or in a form that encoders of protobuf do not write. Answers with faults, and all other frames, are structs of
// protobuf. So each error has one place.
//
// # Streams
//
// A Send stream has two goroutines with the writer between them. The reader cuts each batch into pieces
// (pieceOf), and submits each piece to the writer, which puts its outcomes into the outbox of the stream in this order.
// The other goroutine sends them from there. A Claim stream has the same two sides: one goroutine submits settlements,
// and the other sends the frames that broker.ClaimStream.Next returns. It has no outbox, because its frames do not wait
// in a fixed order: results leave before earlier deliveries, and a delivery that was not sent yet is removed when its
// claim ends. When the daemon stops, both kinds of stream answer all that is under way.
//
// # What it relies on
//
// The package inbox for all reads of mailboxes, the catalog of message types, the registry of agents (which agents are
// asleep), and the server for the errors of single items of a stream. The core does not import this package.
package messagesrpc
