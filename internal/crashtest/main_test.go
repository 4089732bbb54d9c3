// Package crashtest holds the crash test: a real brokerd is killed with SIGKILL in the middle of mixed load,
// again and again, and what it kept is compared with what it had confirmed.
//
// Three parts, one way:
//
//	participants ── what was asked, what was answered ──► record ◄── compared ── verify
//	(senders, consumers, followers)                      (what must be so)      (what is so)
//
// A participant outlives the daemon. When the connection breaks, what it had asked for and was not answered is
// unknown; after the restart it makes up for that: it asks again under the same request id or producer
// number, and what it holds tells whether an ack, nack or release was still carried out.
//
// Beside it are tests of a team at work, of which two are killed, and of leases: an agent that is killed, a daemon that is stopped and one that is
// away for longer than they last.
//
// The same load runs on a PostgreSQL server, which is killed as well.
//
// CRASH_KILLS is how often the daemon is killed (20; 4 on PostgreSQL), CRASH_SEED what the choices are drawn from (random, and
// printed). After 40 kills a new data folder is begun, with the next seed. The same seed gives the same choices, not the same timing.
package crashtest_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain also is the process of an agent that a test kills.
func TestMain(m *testing.M) {
	if isVictim() {
		if err := liveAsVictim(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if isMate() {
		if err := liveAsMate(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
