package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/table"
	"brokerd/cmd/internal/childdaemon"
)

// benchOptions are the options of bench.
type benchOptions struct {
	workloads   []string
	seconds     float64
	rounds      int
	size        int
	preload     int
	idle        int
	subscribers int
	watchers    int
	held        int
	changes     int
	finished    int
	waiting     int
	bulk        int
	numbered    bool
	objects     bool
	keep        time.Duration
	folder      string
}

// AddFlags adds the options.
func (o *benchOptions) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.workloads, "workloads", nil, "which of the above, separated by commas (default: all)")
	f.Float64Var(&o.seconds, "seconds", 5, "how long each workload runs, except watch")
	f.IntVar(&o.rounds, "rounds", 1, "runs of each workload; the median is printed")
	f.IntVar(&o.size, "size", 1024, fmt.Sprintf("bytes of a payload or value, at least %d", MinSize))
	f.IntVar(&o.preload, "preload", 0, "messages that wait in 100 other mailboxes")
	f.IntVar(&o.idle, "idle", 0, "connected agents that wait for work and get none")
	f.IntVar(&o.subscribers, "subscribers", 0, "event subscribers that do not read")
	f.IntVar(&o.watchers, "watchers", 0, "dashboards that follow the overview over HTTP")
	command.DurationVar(f, &o.keep, "keep", 0, "archive and remove finished messages and events after this time; 0: as in a new session")
	f.IntVar(&o.held, "held", 10_000, "locks that others hold in workload held")
	f.IntVar(&o.changes, "changes", 10_000, "changes that each watcher receives in workload watch")
	f.IntVar(&o.finished, "finished", 0, "messages sent and acknowledged before the first workload")
	f.IntVar(&o.waiting, "waiting", 100_000, "messages that wait in one mailbox in the workloads above")
	f.IntVar(&o.bulk, "bulk", BulkTasks, "ready tasks in bulk; its other sizes are in proportion")
	f.StringVar(&o.folder, "folder", "/var/tmp", "where the separate broker has its data: every send waits for this disk")
	f.BoolVar(&o.numbered, "numbered", false, "use producer numbers and request ids, so that the broker recognises duplicates")
	f.BoolVar(&o.objects, "objects", false, "messages are JSON objects of type test_result")
}

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

Each client is an agent with its own connection. A message counts once it is sent,
confirmed, delivered and acknowledged (in backlog and steady: confirmed); its time is from
send to delivery (in both: confirmation). A lock's and a task's time is that of both
calls, a change's from put to watcher. In flood, churn and bulk, the times are those of a
bystander that makes one call at a time; in bulk they count from when a call was due.
CPU is the broker's processor time per operation; MEMORY is its memory at the end,
BACKLOG what then waits.

In a broker that was named, the session remains, with waiting messages; so do those
that bulk opens. HTTP is measured on the broker's Unix socket. bench needs operator
rights.`

// NewCommand measures the broker.
func NewCommand(c *command.Caller) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:               "bench",
		Short:             "Measure the broker",
		Example:           "  brokerctl bench --workloads agents,locks --seconds 10",
		Long:              benchLong,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Env.Get("GOGC") == "" {
				debug.SetGCPercent(400) // to collect a small heap all the time would measure the collector
			}
			return runBench(c, cmd, o)
		},
	}
	o.AddFlags(cmd.Flags())
	command.Must(cmd.RegisterFlagCompletionFunc("workloads", cobra.FixedCompletions(benchNames(), cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func runBench(c *command.Caller, cmd *cobra.Command, o benchOptions) error {
	if err := o.check(); err != nil {
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
	if s.Addr.Value == "" && c.Env.Get("BROKERD_DATA") == "" {
		stop, err := benchBroker(c, cmd, o.folder)
		if err != nil {
			return err
		}
		defer stop()
	}
	connect := func(ctx context.Context) (*client.Client, error) {
		another := *c // whatever connection this run has is not shared
		another.Client = nil
		return another.Connect(ctx)
	}
	results, err := Run(cmd.Context(), connect, Options{
		Workloads:   o.workloads,
		Duration:    time.Duration(o.seconds * float64(time.Second)),
		Rounds:      o.rounds,
		Size:        o.size,
		Preload:     o.preload,
		Idle:        o.idle,
		Subscribers: o.subscribers,
		Watchers:    o.watchers,
		Held:        o.held,
		Changes:     o.changes,
		Finished:    o.finished,
		Waiting:     o.waiting,
		Bulk:        o.bulk,
		Numbered:    o.numbered,
		Objects:     o.objects,
		Keep:        o.keep,
		Progress:    func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) },
	})
	// What was measured before an error is worth seeing.
	if shown := ShowBench(c, cmd.OutOrStdout(), format, results); err == nil {
		err = shown
	}
	return err
}

// benchBroker starts a broker, to which this run then connects.
func benchBroker(c *command.Caller, cmd *cobra.Command, folder string) (stop func(), err error) {
	brokerd, err := command.FindDaemon(c)
	if err != nil {
		return nil, err
	}
	daemon, err := childdaemon.Start(cmd.Context(), brokerd, folder, c.Env.Variables, cmd.ErrOrStderr(), "--sync", "full")
	if err != nil {
		return nil, err
	}
	stop = func() {
		if err := daemon.Stop(); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: the broker's folder remains: %v\n", err)
		}
	}
	address, err := daemon.Address()
	if err != nil {
		stop()
		return nil, err
	}
	// A credential or an agent in the environment is of another broker.
	c.Env.Variables = slices.DeleteFunc(slices.Clone(c.Env.Variables), func(v string) bool {
		return strings.HasPrefix(v, "BROKERD_")
	})
	c.Global.Addr, c.Found = address, nil
	return stop, nil
}

// check refuses options that cannot be meant.
func (o *benchOptions) check() error {
	for _, w := range o.workloads {
		if !slices.Contains(benchNames(), w) {
			return problem.Usagef("--workloads: there is no %q; there are %s", w, strings.Join(benchNames(), ", "))
		}
	}
	switch {
	case o.seconds <= 0 || o.seconds > 3600:
		return problem.Usagef("--seconds is %v; above 0 and up to 3600 is allowed", o.seconds)
	case o.rounds < 1:
		return problem.Usagef("--rounds is %d; at least 1 is needed", o.rounds)
	case o.size < MinSize || o.size > 256<<10:
		return problem.Usagef("--size is %d; %d to %d bytes are allowed", o.size, MinSize, 256<<10)
	case o.held < 0 || o.held > 100_000:
		return problem.Usagef("--held is %d; 0 to 100,000 are allowed", o.held)
	case o.bulk < 1 || o.bulk > BulkTasks:
		return problem.Usagef("--bulk is %d; 1 to %d are allowed", o.bulk, BulkTasks)
	case o.changes < 1:
		return problem.Usagef("--changes is %d; at least 1 is needed", o.changes)
	case o.preload < 0 || o.idle < 0 || o.subscribers < 0 || o.watchers < 0 || o.finished < 0 || o.waiting < 0:
		return problem.Usagef("--preload, --idle, --subscribers, --watchers, --finished and --waiting must not be negative")
	}
	return nil
}

// Measurement is one result as JSON.
type Measurement struct {
	Workload   string   `json:"workload"`
	Rounds     int      `json:"rounds"`
	Count      int      `json:"count"`
	Seconds    float64  `json:"seconds"`
	PerSecond  float64  `json:"per_second"`
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
			part.Workload, part.Rounds = r.Workload+"/"+part.Workload, r.Rounds
			lines = append(lines, part)
		}
	}
	if format == output.FormatJSON {
		encoder := json.NewEncoder(out)
		for _, r := range lines {
			line := Measurement{r.Workload, r.Rounds, r.Count, r.Took.Seconds(), r.PerSecond,
				milliseconds(r.P50), milliseconds(r.P95), milliseconds(r.P99), nil, nil, 1000 * milliseconds(r.CPU), r.Memory, r.Backlog}
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
	t := c.NewTable(out, table.Column{Name: "WORKLOAD", Min: 12}, table.Column{Name: "COUNT", Rank: 3}, table.Column{Name: "A SECOND"},
		table.Column{Name: "P50"}, table.Column{Name: "P95", Rank: 4}, table.Column{Name: "P99"}, table.Column{Name: "SHARE", Rank: 1},
		table.Column{Name: "CPU", Rank: 2}, table.Column{Name: "MEMORY", Rank: 5}, table.Column{Name: "BACKLOG", Rank: 6})
	for _, r := range lines {
		share, memory, backlog := "-", "-", "-"
		if r.MostShare > 0 {
			share = fmt.Sprintf("%.0f–%.0f %%", r.LeastShare*100, r.MostShare*100)
		}
		if r.Memory > 0 {
			memory = output.Size(r.Memory)
		}
		if r.Backlog > 0 {
			backlog = fmt.Sprint(r.Backlog)
		}
		t.Row(r.Workload, fmt.Sprint(r.Count), fmt.Sprintf("%.0f", r.PerSecond), measured(r.P50, time.Millisecond, "ms"),
			measured(r.P95, time.Millisecond, "ms"), measured(r.P99, time.Millisecond, "ms"), share,
			measured(r.CPU, time.Microsecond, "µs"), memory, backlog)
	}
	return t.Flush()
}

// measured is a time in a unit; "-" if it was not measured.
func measured(d, unit time.Duration, name string) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f %s", float64(d)/float64(unit), name)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func benchNames() []string {
	var names []string
	for _, w := range Workloads() {
		names = append(names, w.Name)
	}
	return names
}
