package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/table"
	"brokerd/cmd/internal/childdaemon"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const benchLong = `Start a broker in a temporary folder, and measure it. Where --addr, BROKERD_ADDR,
BROKERD_DATA or .brokerd.yaml names a broker, measure that one instead, in a session of
its own (bench-…) without a mailbox limit.

  agents     64 senders, one message at a time; 8 consumers, 64 claims
  pipelined  4 senders, 256 messages at a time; 4 consumers, 256 claims
  numbered   pipelined with --numbered
  objects    pipelined with --objects
  backlog    pipelined with 100,000 messages (--waiting) before; half as many
             are acknowledged as are sent
  steady     the same; as many are acknowledged as are sent
  paced      20 senders, 50 messages per second; 20 consumers, 1 claim
  locks      32 clients lock and release their own file; others hold 10 files
             and directories
  held       the same; others hold 10,000 (--held)
  contended  8 clients lock and release the same file; SHARE is the range of
             their shares, in eighths
  tokens     2 agents pass a token to each other; one operation is a round trip
  tasks      8 workers claim and complete 10,000 READY tasks, one at a time
  state      32 clients put their own key, on condition of its revision
  read       8 agents read a message of their own mailbox, over gRPC
  http-read  the same over HTTP
  send       8 agents send messages to a role, one at a time, over gRPC
  http-send  the same over HTTP
  watch      8 clients put 10,000 changes (--changes); 20 watchers receive each
  flood      8 agents and an operator send without waiting; 3 agents have 95
             streams that they do not read; 100,000 messages (--waiting) wait
  churn      an agent registers and deregisters, and an operator changes the
             session's settings
  bulk       an agent puts a key every 10 ms beside much work:
             claims with an absent label beside 100,000 tasks, 100 votes of
             1,000 electors due together, 30,000 dependents of a task, 10,000
             tasks of a leaver, 20,000 former queues, 1,000 paths beside 63
             globs

Each client is an agent with its own connection. A message counts once it is delivered
and acknowledged (in backlog and steady: confirmed); its time is from send to delivery
(in both: confirmation). A lock's and a task's time is that of both
calls, a change's from put to watcher. In flood, churn and bulk, the times are those of a
bystander that makes one call at a time; in bulk they count from when a call was due.
CPU is the broker's processor time per operation; MEMORY is its memory at the end,
BACKLOG what then waits.

With --store, rounds alternate with those of a broker on an empty PostgreSQL database;
RATIO is its rate to that of the first broker.

In a broker that was named, the sessions remain, with waiting messages. HTTP is
measured on the Unix socket. bench needs operator rights.`

// Command measures the broker.
var Command = command.Procedure[command.None]{
	Page: command.Page{
		Use:     "bench",
		Short:   "Measure the broker",
		Example: "  brokerctl bench --workloads agents,locks --seconds 10",
		Long:    benchLong,
	},
	Options: []command.Option{
		{Name: "workloads", Type: "strings", Comma: true, Kind: command.Kind{Name: "NAME", Fixed: benchNames()},
			Usage: "which of the above, separated by commas (default: all)"},
		{Name: "seconds", Type: "double", Value: "5", Usage: "how long each workload runs, except watch"},
		number("rounds", 1, "runs of each workload; the median is printed"),
		number("size", 1024, fmt.Sprintf("bytes of a payload or value, at least %d", MinSize)),
		number("preload", 0, "messages that wait in 100 other mailboxes"),
		number("idle", 0, "connected agents that wait for work and get none"),
		number("subscribers", 0, "event subscribers that do not read"),
		number("watchers", 0, "dashboards that follow the overview over HTTP"),
		{Name: "keep", Type: "duration",
			Usage: "archive and remove finished messages and events after this time; 0: as in a new session"},
		number("held", 10_000, "locks that others hold in workload held"),
		number("changes", 10_000, "changes that each watcher receives in workload watch"),
		number("finished", 0, "messages sent and acknowledged before the first workload"),
		number("waiting", 100_000, "messages that wait in one mailbox in the workloads above"),
		number("bulk", BulkTasks, "ready tasks in bulk; its other sizes are in proportion"),
		{Name: "folder", Type: "string", Value: "/var/tmp",
			Usage: "where the separate broker has its data: sends wait for this disk"},
		{Name: "store", Type: "string", Kind: command.Kind{Name: "URL"},
			Usage: "a database to compare with, postgres://…"},
		{Name: "numbered", Type: "bool",
			Usage: "use producer numbers and request ids"},
		{Name: "objects", Type: "bool", Usage: "messages are JSON objects of type test_result"},
	},
	Run: func(g *command.Given, _ command.None) error {
		if g.Env.Get("GOGC") == "" {
			debug.SetGCPercent(400) // to collect a small heap all the time would measure the collector
		}
		return runBench(g)
	},
}

// number is an option for a number, with its default.
func number(name string, value int, usage string) command.Option {
	return command.Option{Name: name, Type: "int", Value: strconv.Itoa(value), Usage: usage}
}

func runBench(g *command.Given) error {
	c, cmd := g.Caller, g.Cmd
	seconds := g.Float("seconds")
	o := Options{
		Workloads: g.Texts("workloads"), Duration: time.Duration(seconds * float64(time.Second)), Rounds: g.Int("rounds"),
		Size: g.Int("size"), Preload: g.Int("preload"), Idle: g.Int("idle"), Subscribers: g.Int("subscribers"),
		Watchers: g.Int("watchers"), Held: g.Int("held"), Changes: g.Int("changes"), Finished: g.Int("finished"),
		Waiting: g.Int("waiting"), Bulk: g.Int("bulk"), Numbered: g.On("numbered"), Objects: g.On("objects"),
		Keep:     g.Duration("keep"),
		Progress: func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) },
	}
	if err := o.check(seconds); err != nil {
		return err
	}
	format, err := c.Format()
	if err != nil {
		return err
	}
	s, err := c.Settings()
	if err != nil {
		return err
	}
	if s.Refused != nil {
		return s.Refused
	}
	brokers := []Broker{{Name: "named", Connect: connecting(c)}}
	if s.Addr.Value == "" && c.Env.Get("BROKERD_DATA") == "" {
		connect, stop, err := benchBroker(c, cmd, g.Text("folder"), "--sync", "full")
		if err != nil {
			return err
		}
		defer stop()
		brokers[0] = Broker{"sqlite", connect}
	}
	if url := g.Text("store"); url != "" {
		connect, stop, err := benchBroker(c, cmd, g.Text("folder"), "--store", url)
		if err != nil {
			return err
		}
		defer stop()
		if err := checkUnused(cmd.Context(), connect); err != nil {
			return err
		}
		brokers = append(brokers, Broker{"postgres", connect})
	}
	results, err := Run(cmd.Context(), brokers, o)
	// What was measured before an error is worth seeing.
	if shown := ShowBench(c, cmd.OutOrStdout(), format, results); err == nil {
		err = shown
	}
	return err
}

// checkUnused refuses a database with data of a broker: only benchmarks may have used it.
func checkUnused(ctx context.Context, connect Connect) error {
	cl, err := connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	page, err := cl.As("").Sessions().ListSessions(ctx, &pb.ListSessionsRequest{PageSize: 1000})
	if err != nil {
		return err
	}
	status, err := cl.As("").Admin().GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		return err
	}
	used := status.GetAgents() > 0 // in the default session, which every database has
	for _, s := range page.GetSessions() {
		used = used || s.GetName() != "default" && s.GetDescription() != description
	}
	if used {
		return problem.Usagef("--store: the database has data of a broker, and bench would write beside it: " +
			"name a database of its own")
	}
	return nil
}

// connecting returns how a caller makes connections.
func connecting(c *command.Caller) Connect {
	return func(ctx context.Context) (*client.Client, error) {
		another := *c // whatever connection this run has is not shared
		another.Client = nil
		return another.Connect(ctx)
	}
}

// benchBroker starts a broker with further arguments.
func benchBroker(
	c *command.Caller, cmd *cobra.Command, folder string, args ...string,
) (connect Connect, stop func(), err error) {
	brokerd, err := command.FindDaemon(c)
	if err != nil {
		return nil, nil, err
	}
	daemon, err := childdaemon.Start(cmd.Context(), brokerd, folder, c.Env.Variables, cmd.ErrOrStderr(), args...)
	if err != nil {
		return nil, nil, err
	}
	stop = func() {
		if err := daemon.Stop(); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: the broker's folder remains: %v\n", err)
		}
	}
	address, err := daemon.Address()
	if err != nil {
		stop()
		return nil, nil, err
	}
	own := *c
	// A credential or an agent in the environment is of another broker.
	own.Env.Variables = slices.DeleteFunc(slices.Clone(c.Env.Variables), func(v string) bool {
		return strings.HasPrefix(v, "BROKERD_")
	})
	own.Global.Addr, own.Found = address, nil
	return connecting(&own), stop, nil
}

// check refuses options that cannot be meant. seconds are the duration, which may be out of its range.
func (o *Options) check(seconds float64) error {
	for _, w := range o.Workloads {
		if !slices.Contains(benchNames(), w) {
			return problem.Usagef("--workloads: there is no %q; there are %s", w, strings.Join(benchNames(), ", "))
		}
	}
	switch {
	case seconds <= 0 || seconds > 3600:
		return problem.Usagef("--seconds is %v; above 0 and up to 3600 is allowed", seconds)
	case o.Rounds < 1:
		return problem.Usagef("--rounds is %d; at least 1 is needed", o.Rounds)
	case o.Size < MinSize || o.Size > 256<<10:
		return problem.Usagef("--size is %d; %d to %d bytes are allowed", o.Size, MinSize, 256<<10)
	case o.Held < 0 || o.Held > 100_000:
		return problem.Usagef("--held is %d; 0 to 100,000 are allowed", o.Held)
	case o.Bulk < 1 || o.Bulk > BulkTasks:
		return problem.Usagef("--bulk is %d; 1 to %d are allowed", o.Bulk, BulkTasks)
	case o.Changes < 1:
		return problem.Usagef("--changes is %d; at least 1 is needed", o.Changes)
	case o.Preload < 0 || o.Idle < 0 || o.Subscribers < 0 || o.Watchers < 0 || o.Finished < 0 || o.Waiting < 0:
		return problem.Usagef("--preload, --idle, --subscribers, --watchers, --finished and --waiting must not be negative")
	}
	return nil
}

// Measurement is one result as JSON.
type Measurement struct {
	Workload   string   `json:"workload"`
	Broker     string   `json:"broker"` // with --store, sqlite or named (by --addr and others), and postgres; else empty
	Rounds     int      `json:"rounds"`
	Count      int      `json:"count"`
	Seconds    float64  `json:"seconds"`
	PerSecond  float64  `json:"per_second"`
	Ratio      float64  `json:"ratio"` // with --store, of per_second to that of the first broker; else 0
	P50        float64  `json:"p50_ms"`
	P95        float64  `json:"p95_ms"`
	P99        float64  `json:"p99_ms"`
	LeastShare *float64 `json:"least_share"` // null for workloads whose clients share nothing
	MostShare  *float64 `json:"most_share"`
	CPU        float64  `json:"broker_cpu_us"`       // for each of Count; 0 = not measured
	Memory     int64    `json:"broker_memory_bytes"` // 0 = not measured
	Backlog    int      `json:"backlog"`             // 0 = none, or another workload
}

// ShowBench prints results: as JSON, or as text. The calls of a bystander follow their workload.
func ShowBench(c *command.Caller, out io.Writer, format string, results []Result) error {
	var lines []Result
	for _, r := range results {
		lines = append(lines, r)
		for _, part := range r.Parts {
			part.Workload, part.Broker, part.Rounds = r.Workload+"/"+part.Workload, r.Broker, r.Rounds
			lines = append(lines, part)
		}
	}
	if format == output.FormatJSON {
		encoder := json.NewEncoder(out)
		for _, r := range lines {
			line := Measurement{r.Workload, r.Broker, r.Rounds, r.Count, r.Took.Seconds(), r.PerSecond, r.Ratio,
				milliseconds(r.P50), milliseconds(r.P95), milliseconds(r.P99), nil, nil,
				1000 * milliseconds(r.CPU), r.Memory, r.Backlog}
			if r.MostShare > 0 {
				line.LeastShare, line.MostShare = &r.LeastShare, &r.MostShare
			}
			if err := encoder.Encode(line); err != nil {
				return err
			}
		}
		return nil
	}
	if len(lines) == 0 {
		return nil
	}
	t := c.NewTable(out, table.Column{Name: "WORKLOAD", Min: 12}, table.Column{Name: "BROKER"},
		table.Column{Name: "COUNT", Rank: 3}, table.Column{Name: "A SECOND"}, table.Column{Name: "RATIO"},
		table.Column{Name: "P50"}, table.Column{Name: "P95", Rank: 4},
		table.Column{Name: "P99"}, table.Column{Name: "SHARE", Rank: 1},
		table.Column{Name: "CPU", Rank: 2}, table.Column{Name: "MEMORY", Rank: 5}, table.Column{Name: "BACKLOG", Rank: 6})
	for _, r := range lines {
		share := prompt.Either(r.MostShare > 0, fmt.Sprintf("%.0f–%.0f %%", r.LeastShare*100, r.MostShare*100), "-")
		memory := prompt.Either(r.Memory > 0, output.Size(r.Memory), "-")
		backlog := prompt.Either(r.Backlog > 0, fmt.Sprint(r.Backlog), "-")
		ratio := prompt.Either(r.Ratio > 0, fmt.Sprintf("%.2f", r.Ratio), "")
		t.Row(r.Workload, r.Broker, fmt.Sprint(r.Count), fmt.Sprintf("%.0f", r.PerSecond), ratio,
			measured(r.P50, time.Millisecond, "ms"), measured(r.P95, time.Millisecond, "ms"), measured(r.P99, time.Millisecond, "ms"), share,
			measured(r.CPU, time.Microsecond, "µs"), memory, backlog)
	}
	return t.Flush()
}

// measured is a time in a unit; "-" if it was not measured.
func measured(d, unit time.Duration, name string) string {
	return prompt.Either(d == 0, "-", fmt.Sprintf("%.2f %s", float64(d)/float64(unit), name))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func benchNames() []string {
	return each.Of(Workloads(), func(w Workload) string { return w.Name })
}
