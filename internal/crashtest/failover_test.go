package crashtest_test

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
	"brokerd/internal/store/postgres"
	"brokerd/internal/testkit"
)

// A failover is something that goes wrong with two replicas, or with their server.
type failover struct {
	name    string
	standby bool          // the server has a synchronous standby
	alone   bool          // the replicas have a separate network
	disk    bool          // the database is on a small disk
	reason  string        // with which calls may fail, besides those of a lost leader or server
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
			r.admin(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted`)
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
		{name: "the replicas are cut off from each other", alone: true,
			begin: func(r *replicas) { // to the server they connect by its Unix socket, and so do the agents to them
				r.network.set("down")
				r.load.awaitFailure(r.ctx, "", "NO_LEADER") // at the follower
				r.load.awaitProgressAt(r.ctx, r.load.daemons[1])
			},
			end: func(r *replicas) { r.network.set("up") }},
		{name: "the server has no connection left",
			begin: func(r *replicas) {
				r.admin(`ALTER ROLE brokerd CONNECTION LIMIT 0`)
				r.admin(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'brokerd'`)
			},
			end: func(r *replicas) { r.admin(`ALTER ROLE brokerd CONNECTION LIMIT -1`) }},
		{name: "the disk of the server is full", disk: true, reason: "DISK_FULL",
			begin: func(r *replicas) {
				fill(r.t, filepath.Join(r.disk, "filler"))
				r.load.awaitFailure(r.ctx, "DISK_FULL")
			},
			end: func(r *replicas) { testkit.NoError(r.t, os.Remove(filepath.Join(r.disk, "filler"))) }},
		{name: "another program holds a transaction open", most: lead, begin: func(r *replicas) {
			db, err := pgx.Connect(r.ctx, r.server.URL("brokerd"))
			testkit.NoError(r.t, err)
			r.t.Cleanup(func() { _ = db.Close(context.Background()) })
			_, err = db.Exec(r.ctx, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM messages`)
			testkit.NoError(r.t, err)
		}},
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
	network          *network             // of the replicas; nil if it is that of the test
	disk             string               // of the database; empty unless it is small
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
				if (fault.alone || fault.disk) && os.Geteuid() != 0 {
					t.Skip("only root can make a network and a small disk")
				}
				for range rounds {
					gaps[i] = append(gaps[i], newReplicas(t, program, fault).play(fault))
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
	expected := []string{"", fault.reason, "NO_LEADER", "STOPPING", "SHUTTING_DOWN"}
	for reason := range r.load.failed {
		if !slices.Contains(expected, reason) && !strings.HasPrefix(reason, "DATABASE_") {
			r.t.Errorf("calls failed with %q", reason)
		}
	}
	return longest
}

func newReplicas(t *testing.T, program string, fault failover) *replicas {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	r := &replicas{t: t, ctx: ctx, server: postgrestest.Own(t)}
	r.admin(`CREATE ROLE brokerd LOGIN`)
	space := ""
	if fault.disk {
		r.disk, space = smallDisk(t, r.server), ` TABLESPACE small`
	}
	r.admin(`CREATE DATABASE brokerd OWNER brokerd` + space)
	if fault.alone {
		r.network = newNetwork(t)
		program = r.network.within(program)
	}
	store := strings.Replace(r.server.URL("brokerd"), "broker@", "brokerd@", 1)
	if fault.standby {
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

// admin runs a statement as the superuser.
func (r *replicas) admin(text string) {
	r.t.Helper()
	testkit.NoError(r.t, postgrestest.Run(r.server.URL("postgres"), text))
}

// A network is one that has nothing but a loopback interface.
type network struct {
	t   *testing.T
	pid string // of a process in it
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	cmd := exec.Command("unshare", "--net", "cat")
	in, err := cmd.StdinPipe()
	testkit.NoError(t, err)
	out, err := cmd.StdoutPipe()
	testkit.NoError(t, err)
	testkit.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = in.Close(), cmd.Wait() })
	_, err = in.Write([]byte("x"))
	testkit.NoError(t, err)
	_, err = out.Read(make([]byte, 1)) // from here on it is in its own network
	testkit.NoError(t, err)
	n := &network{t, strconv.Itoa(cmd.Process.Pid)}
	own, err := os.Readlink("/proc/" + n.pid + "/ns/net")
	testkit.NoError(t, err)
	if outside, err := os.Readlink("/proc/self/ns/net"); err != nil || own == outside {
		t.Fatalf("the process is in the network of the test, %s: %v", outside, err)
	}
	n.set("up")
	return n
}

// set has the interface go up or down.
func (n *network) set(state string) {
	n.t.Helper()
	within := "--net=/proc/" + n.pid + "/ns/net"
	out, err := exec.CommandContext(n.t.Context(), "nsenter", within, "ip", "link", "set", "lo", state).CombinedOutput()
	if err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
}

// within returns a program that runs another one in the network.
func (n *network) within(program string) string {
	n.t.Helper()
	path := filepath.Join(n.t.TempDir(), "brokerd")
	script := "#!/bin/sh\nexec nsenter --net=/proc/" + n.pid + "/ns/net " + program + ` "$@"` + "\n"
	testkit.NoError(n.t, os.WriteFile(path, []byte(script), 0o700))
	return path
}

// signal sends a signal to the leader.
func (r *replicas) signal(s syscall.Signal) { testkit.NoError(r.t, syscall.Kill(r.leader.PID(), s)) }
