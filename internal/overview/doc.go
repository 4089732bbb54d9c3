// Package overview streams frames to the clients that watch a session, such as dashboards. A frame
// describes the session at one revision: totals and rates, the fullest mailboxes, the agents, the
// newest events, and the findings of explain.
//
//	first client ──► reader of the session ──► wait for a commit of the session, 1 s at most
//	                      ▲                              │
//	                      │                              ▼
//	              wait 100 ms, or 20 times          read one snapshot, encode a frame
//	              as long as the frame took              │
//	                      ▲                              ▼
//	                      └───────────── publish it, if it differs from the last one
//	                                                     │ newest frame alone
//	                                     client ◄────────┼────────► client
//
// One reader serves all clients that watch a session. It starts with the first of them and ends
// with the last, when the session is closed, and when the broker stops. Without a client, the
// package does nothing, and it never adds work to the path of a message.
//
// The reader keeps the newest frame alone. Each client's stream sends the newest frame that it has
// not sent, so a client that reads slowly misses frames and delays neither the reader nor other
// clients. The frame is encoded once; all streams send the same bytes.
//
// The cost is bounded. All reads of a frame are bounded by index. The broker builds one frame at a
// time over all sessions, and a reader rests for 20 times as long as its last frame took. Explain
// examines many mailboxes, so it has its own pause, of 1 s at least; frames in between repeat its findings.
package overview
