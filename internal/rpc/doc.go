// Package rpc is what every call passes on its way to a feature and back, and the only place that
// knows gRPC's codes and metadata.
//
//	listener ─► peer ──► identity ─► access ─► decode ─► rules ──► feature ─► errors ─► log
//	            (uid)    (headers)   (table)   (bytes)   (fields)            (table)
//
// A listener's connections speak gRPC, or HTTP/1.1: the first bytes say so, or the handshake of TLS
// does. Package web serves HTTP/1.1. It makes its calls in process, by Server.Call and Server.Stream,
// on the same path.
//
// There are no interceptors: RegisterService wraps each handler as it is registered, so that identity
// and access are settled before a request is decoded, and a single message on a stream costs nothing
// beyond its own decoding.
//
// # Requests and answers
//
// The server reads requests itself, into buffers that it uses again, so that their bytes count before they arrive. Protobuf
// decodes a request and encodes an answer, with two exceptions for the frames of streams: a wireReader reads the usual form of
// its bytes itself, and a wireWriter appends its bytes to gRPC's buffer itself. The same limits hold for both.
//
// # Who is calling
//
// Over a Unix socket the kernel names the user at the other end; anybody but the daemon's own user
// is refused before the first byte of HTTP/2. Over TCP a call must carry a credential. Either way the metadata
// brokerd-agent, brokerd-session, brokerd-incarnation and brokerd-fence say for whom it speaks. A call that names an agent has that
// agent's rights and no more, even if the one behind it could have called as operator.
//
// # Errors
//
// Features return the kinds of package fault. One table makes gRPC codes of them, with google.rpc
// details. What is no fault is a defect: its text goes to the log, the caller is told INTERNAL.
package rpc
