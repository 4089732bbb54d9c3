// Package histories holds the proof that keys, locks and tokens behave as if one call came after the other: clients call a
// running brokerd concurrently, what they asked and what they were answered is recorded with its time, and porcupine
// searches an order of the calls that keeps to their times and that the model allows. If there is none, the broker is wrong.
//
//	clients ── call, answer, from when to when ──► history ──► porcupine ◄── model (what the API promises)
//
// A history has six clients, agents in a session of its own, and 60 calls of each. There are seven kinds: keys, locks,
// one token, locks and tokens together, tasks, votes, and decisions. Every fourth history runs on a daemon that is
// killed with SIGKILL and started again all the time. A call that was cut off is made again: under its request id, or
// because that is harmless, so that its outcome is known in the end. At most two a history are not; the model has them
// happen at some time, or never.
//
// The models know no time. What the broker ends because its owner made no call for too long, such as a ticket, is a
// call of its own in the history, taken from the event log.
//
// The models go by more than the answers: what the broker names as revision, fence or ticket must grow along the order found.
//
// HISTORIES is how many are run (100, and 20 on PostgreSQL), HISTORY_SEED what the choices are drawn from (random, and printed). The same
// seed gives the same choices, not the same timing; so a history that is wrong is written to a file.
package histories_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
