// Package idempotency makes a change once even if a client requests it twice. A request may carry an id, a
// UUID. With the id, session, caller and RPC, the broker keeps a hash of the request and its
// answer, in the transaction of the change:
//
//	not seen               the change is made, its answer kept for an hour of the broker's uptime
//	seen, same hash        the kept answer is given again, nothing is changed
//	seen, another hash     fault.Exists, REQUEST_ID_REUSED
//
// Only successes are kept: a request that failed may be tried again under its id. Changes of the
// wall clock do not shorten the hour, and neither does a restart. The broker removes a few older
// rows whenever it adds one, so the table needs no sweeper. Ids of version 7 grow with time and
// keep the index compact; random ones scatter it.
//
// A session is known by its row id, which the broker never reuses. So the ids of a deleted session
// match nothing in another session of the same name. Do therefore needs the table of package
// sessions.
package idempotency
