package crashtest_test

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
	"brokerd/internal/store/postgres"
	"brokerd/internal/testkit"
)

// A failover is something that goes wrong with two replicas, or with their server.
type failover struct {
	name    string
	standby bool          // the server has a synchronous standby
	most    time.Duration // without a confirmation, for FAILOVER_ROUNDS of 3 or more; 0 = as long as the fault lasts
	begin   func(r *replicas)
	end     func(r *replicas)
}

// lead is how long a change of the lead may take: that of a restart, and the time until the clients have connected.
const lead = time.Second

func failovers() []failover {
	restart := func(r *replicas) { testkit.NoError(r.t, r.server.Restart()) }
	return []failover{
		{name: "the leader is killed", most: lead,
			begin: func(r *replicas) { r.leader.Kill() }, end: func(r *replicas) { testkit.NoError(r.t, r.leader.Start(r.ctx)) }},
		{name: "the leader stops in order", most: lead,
			begin: func(r *replicas) { testkit.NoError(r.t, r.leader.Terminate()) },
			end:   func(r *replicas) { testkit.NoError(r.t, r.leader.Start(r.ctx)) }},
		{name: "the leader is frozen", most: postgres.Lease + lead,
			begin: func(r *replicas) { r.signal(syscall.SIGSTOP) }, end: func(r *replicas) { r.signal(syscall.SIGCONT) }},
		{name: "the leader is cut off from the server", most: postgres.Lease + lead,
			begin: func(r *replicas) { r.proxy.Freeze() }, end: func(r *replicas) { r.proxy.Thaw() }},
		{name: "the follower is killed", most: lead,
			begin: func(r *replicas) { r.follower.Kill() }, end: func(r *replicas) { testkit.NoError(r.t, r.follower.Start(r.ctx)) }},
		{name: "the connection of the leader is ended", most: lead, begin: func(r *replicas) {
			testkit.NoError(r.t, postgrestest.Run(r.server.URL("postgres"),
				`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted`))
		}},
		{name: "the server is killed", begin: func(r *replicas) { r.server.Kill() }, end: restart},
		{name: "the server restarts", begin: func(r *replicas) { r.server.End(syscall.SIGINT) }, end: restart},
		{name: "the primary is killed, and the standby is promoted", standby: true, most: 2 * lead, begin: func(r *replicas) {
			r.server.Kill()
			testkit.NoError(r.t, r.standby.Promote())
		}},
		{name: "the standby is lost", standby: true,
			begin: func(r *replicas) { r.standby.End(syscall.SIGINT) },
			end:   func(r *replicas) { testkit.NoError(r.t, r.standby.Restart()) }},
		{name: "both replicas are upgraded, one after the other", most: lead, begin: func(r *replicas) {
			for _, d := range []*daemon{r.follower, r.leader} {
				testkit.NoError(r.t, d.Terminate())
				r.load.awaitProgress(r.ctx)
				testkit.NoError(r.t, d.Start(r.ctx))
				r.load.awaitProgress(r.ctx)
			}
		}},
	}
}

// replicas are two daemons on one database, and a load on both.
type replicas struct {
	t                *testing.T
	ctx              context.Context
	server           *postgrestest.Server
	standby          *postgrestest.Server // nil without one
	proxy            *postgrestest.Proxy  // between the first leader and the server
	leader, follower *daemon
	load             *load
}

// Whatever is lost, the agents go on: nothing confirmed is lost, and nothing is there twice.
func TestFailover_TheAgentsGoOn(t *testing.T) {
	t.Parallel()
	rounds := int(fromEnvironment(t, "FAILOVER_ROUNDS", 1))
	program := processtest.Build(t)
	gaps := make([][]time.Duration, len(failovers()))
	t.Run("faults", func(t *testing.T) {
		for i, fault := range failovers() {
			t.Run(fault.name, func(t *testing.T) {
				if rounds < 3 { // the gaps of a machine that is busy with other rounds say nothing
					t.Parallel()
				}
				for range rounds {
					gaps[i] = append(gaps[i], newReplicas(t, program, fault.standby).play(fault))
				}
			})
		}
	})
	for i, fault := range failovers() {
		slices.Sort(gaps[i])
		if len(gaps[i]) < rounds {
			continue // it has failed
		}
		median := gaps[i][len(gaps[i])/2]
		t.Logf("%s: at most %v without a confirmation", fault.name, median.Round(10*time.Millisecond))
		if rounds >= 3 && fault.most > 0 && median > fault.most {
			t.Errorf("%s: %v without a confirmation, want at most %v", fault.name, median, fault.most)
		}
	}
}

// play has a fault begin and end under load, and returns the longest time without a call that succeeded.
func (r *replicas) play(fault failover) time.Duration {
	r.t.Helper()
	r.load.start(r.ctx)
	r.load.awaitProgress(r.ctx)
	gap := r.load.since()
	fault.begin(r)
	if fault.most > 0 {
		r.load.awaitProgress(r.ctx)
	}
	longest := gap()
	if fault.end != nil {
		fault.end(r)
	}
	r.load.awaitProgress(r.ctx)
	if fault.most == 0 {
		longest = gap()
	}
	r.load.verify(r.ctx)
	for reason := range r.load.failed {
		if reason != "" && reason != "NO_LEADER" && !strings.HasPrefix(reason, "DATABASE_") && reason != "STOPPING" && reason != "SHUTTING_DOWN" {
			r.t.Errorf("calls failed with %q", reason)
		}
	}
	return longest
}

func newReplicas(t *testing.T, program string, standby bool) *replicas {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	r := &replicas{t: t, ctx: ctx, server: postgrestest.Own(t)}
	store := r.server.URL("postgres")
	if standby {
		r.standby = r.server.Standby(t)
		testkit.NoError(t, r.server.AwaitStandby())
		u, err := url.Parse(store)
		testkit.NoError(t, err)
		u.RawQuery = url.Values{"host": {r.server.Dir() + "," + r.standby.Dir()}, "target_session_attrs": {"read-write"}}.Encode()
		store = u.String()
	} else {
		r.proxy = postgrestest.NewProxy(t, store)
	}
	r.leader, r.follower = newDaemon(t, program), newDaemon(t, program)
	for _, d := range []*daemon{r.leader, r.follower} {
		d.Store, d.Args = store, []string{"--replica", "127.0.0.1:0", "--log-level", "info"}
		if d == r.leader && r.proxy != nil {
			d.Store = r.proxy.URL
		}
		testkit.NoError(t, d.Start(ctx))
	}
	first, second := &daemon{Daemon: r.follower.Daemon}, &daemon{Daemon: r.leader.Daemon}
	for i, d := range []*daemon{first, second} {
		addresses := []string{r.follower.Address(), r.leader.Address()}
		if i > 0 {
			slices.Reverse(addresses)
		}
		testkit.NoError(t, d.connectTo(addresses...))
		t.Cleanup(d.disconnect)
	}
	testkit.NoError(t, noQuotas(ctx, first))
	r.load = newLoad(t, first, second)
	return r
}

// signal sends a signal to the leader.
func (r *replicas) signal(s syscall.Signal) { testkit.NoError(r.t, syscall.Kill(r.leader.PID(), s)) }
