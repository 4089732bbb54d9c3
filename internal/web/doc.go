// Package web serves the API as HTTP/1.1 with JSON, on the addresses of gRPC.
//
//	socket ─► internal/rpc ─► HTTP/2: gRPC ──────────────────────────┐
//	          (first bytes)                                          ▼
//	                    └───► HTTP/1.1: route ─► transcoder ─► handlers of internal/rpc
//
// It is a second way to the same calls, not a second API. The transcoder calls the handlers that
// internal/rpc has wrapped, in process, with the connection and the headers of the HTTP request.
// Identity, access, limits, presence and metrics therefore apply as they do over gRPC. The package
// never dials the daemon's own socket: a gateway that does gives every client the rights of the
// daemon's user.
//
// # Requests
//
// A route names one RPC. The fields of its request come from the JSON object in the body, the
// parameters of the path, and the query; a field may be given once. Package jsonform reads and writes
// the messages, by their descriptors. A request is read after the caller is known to have access.
//
// # Streams
//
// A server stream answers with one JSON object per line, or with server-sent events. The id of an
// event is the revision at which a client resumes. A client that reads nothing for writeTime is
// disconnected. Requests of a client stream are one JSON object per line.
//
// # Dashboard
//
// The folder ui has the dashboard, which the daemon serves at /: plain ES modules without a build step,
// and one bundle of npm packages. The page calls the API as any other HTTP client does, and its files
// need no credential. lib/live.js follows the overview, and the modules of the folder views have the views.
//
// # Lifetimes
//
// http.Server has a goroutine for each connection. A stream has one more, which writes comments while
// nothing else is written, and ends with it. Package rpc counts the calls, and waits for them when the
// broker stops.
package web
