// Package replica has several brokerd serve one database. One of them leads: it alone runs the broker. The others stand
// by, and forward every connection of a client to the leader.
//
//	client ──► follower: TLS or user of the socket ──► leader: gRPC, HTTP ──► PostgreSQL
//	                     (facts, then bytes)            (credentials, calls)
//
// # Connections, not calls
//
// A follower completes the handshake with a client, opens a connection to the leader, says what it has found out about
// the client (rpc.Facts), and copies bytes both ways. So calls, streams, HTTP/JSON, the dashboard and MCP are the same
// through every replica, and no other package knows that replicas exist. When the leader is lost, the client's
// connection is closed, and the client connects again, as it does when a broker restarts.
//
// # Who is a replica
//
// Each process makes a key and a certificate when it starts, and enters the certificate in the list of replicas in the
// database (postgres.Roster). The key never leaves the process. Two replicas talk over TLS 1.3, and each accepts only a
// certificate of the list. So every program that can write to the database can be a replica, and no other program
// can say who a client is: there is no header for it.
//
// # Who leads
//
// The leader holds a lock of the database on its writer's connection, and followers wait for it: see package postgres.
// While no replica leads, or this one cannot reach the leader, connections wait for one. After patience they get
// UNAVAILABLE (NO_LEADER) for every call.
package replica
