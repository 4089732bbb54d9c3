// Package bench drives a broker with the workloads that brokers are compared by, and measures how many messages a second
// are sent, confirmed on disk, delivered and acknowledged, how many locks, tokens and keys are taken, passed on and written, and how
// long each takes.
//
// It works in a session of its own with the quota off. Every participant is an agent on a connection of its own. Senders and
// consumers of messages speak the streams of the API directly; all else is unary calls, as agents make them.
package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/each"
	pb "brokerd/gen/brokerd/v1"
)

// MinSize is the smallest payload in bytes: it must hold the time at which it was sent, as JSON.
const MinSize = 18

// A Workload is one way to drive the broker.
type Workload struct {
	Name    string
	measure func(ctx context.Context, b *bench, prefix string) (Result, error) // one round; names of agents and keys begin with prefix
}

// Workloads returns those that brokers are compared by.
func Workloads() []Workload {
	return []Workload{
		{"agents", traffic{senders: 64, batch: 1, consumers: 8, claims: 64}.measure},
		{"pipelined", traffic{senders: 4, batch: 256, consumers: 4, claims: 256}.measure},
		{"numbered", traffic{senders: 4, batch: 256, consumers: 4, claims: 256, numbered: true}.measure},
		{"objects", traffic{senders: 4, batch: 256, consumers: 4, claims: 256, objects: true}.measure},
		{"backlog", traffic{senders: 4, batch: 256, consumers: 4, claims: 256, sendsPer: 2}.measure},
		{"steady", traffic{senders: 4, batch: 256, consumers: 4, claims: 256, sendsPer: 1}.measure},
		{"paced", traffic{senders: 20, batch: 1, consumers: 20, claims: 1, pace: 20 * time.Millisecond}.measure},
		{"locks", lockOwn},
		{"held", lockOwnAmongMany},
		{"contended", contended},
		{"tokens", tokens},
		{"tasks", tasks},
		{"state", state},
		{"read", read(false)},
		{"http-read", read(true)},
		{"send", send(false)},
		{"http-send", send(true)},
		{"watch", watch},
		{"flood", flood},
		{"churn", churn},
		{"bulk", bulk},
	}
}

// Options say what to measure.
type Options struct {
	Workloads   []string      // names; empty = all
	Duration    time.Duration // how long a workload sends
	Rounds      int           // how often each workload is run; the median by throughput is reported
	Size        int           // bytes of a payload, MinSize at least
	Preload     int           // messages that wait in 100 other mailboxes
	Idle        int           // connected agents that wait for work and get none
	Subscribers int           // event subscribers that stop reading
	Watchers    int           // dashboards that follow the overview over HTTP
	Finished    int           // messages that are acknowledged before the first workload
	Waiting     int           // messages that wait in one mailbox in workloads backlog, steady, flood and churn
	Bulk        int           // ready tasks in workload bulk, its other sizes in proportion; 0 = BulkTasks
	Keep        time.Duration // how long finished messages and events are kept; 0 = the default
	Held        int           // locks that others hold in workload held
	Changes     int           // that each watcher gets
	Numbered    bool          // senders number their messages and other changes have request ids, so that the broker recognises repeated ones
	Objects     bool          // messages have JSON objects of a type with a schema, not strings
	Progress    func(text string)
}

// A Result is what one workload came to.
type Result struct {
	Workload  string
	Broker    string // which of several brokers
	Rounds    int
	Count     int           // what was done: messages confirmed, delivered and acknowledged; locks taken and released; …
	Took      time.Duration // from the first send to the last acknowledgement
	PerSecond float64
	Ratio     float64 // PerSecond to that of the first of several brokers; 0 = there is only one
	// How long one took, of the slowest of 50, 95 and 99 in a hundred: a message from the beginning of its send to its
	// delivery; in workloads backlog and steady a batch from the beginning of its send to its confirmation.
	P50, P95, P99 time.Duration
	// What the least and the most served client got of its fair share; 1 = just that. 0 = that was not measured.
	LeastShare, MostShare float64
	// Messages that wait or are claimed at the end, in workloads backlog and steady; else 0.
	Backlog int
	// Processor time of the broker for each of Count, and its memory in bytes at the end; 0 = not
	// measured.
	CPU    time.Duration
	Memory int64
	// The calls of a bystander, in workloads that have one; Workload names the call.
	Parts []Result
}

// Connect opens a new connection with an operator's rights.
type Connect func(ctx context.Context) (*client.Client, error)

// A Broker is one that is measured.
type Broker struct {
	Name    string
	Connect Connect
}

// Run measures and returns one result for each workload and broker. The rounds of several brokers take turns, so that all
// of them meet the same machine. Run fails if a message was refused or not acknowledged.
func Run(ctx context.Context, brokers []Broker, o Options) ([]Result, error) {
	chosen, err := o.chosen()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []*bench
	for _, broker := range brokers {
		b := &bench{connect: broker.Connect, o: o, session: "bench-" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12]}
		if len(brokers) > 1 {
			b.name = broker.Name + ": "
		}
		defer b.reading.Wait()
		defer cancel() // before the readings are waited for
		defer b.leave()
		if err := b.openSession(ctx); err != nil {
			return nil, err
		}
		if err := b.burden(ctx); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	var results []Result
	for _, w := range chosen {
		rounds := make([][]Result, len(all))
		for round := range max(o.Rounds, 1) {
			for i, b := range all {
				b.progress("%s%s: round %d of %d", b.name, w.Name, round+1, max(o.Rounds, 1))
				r, err := w.measure(ctx, b, fmt.Sprintf("%s-%d", w.Name, round))
				if err != nil {
					return results, fmt.Errorf("%sworkload %s: %w", b.name, w.Name, err)
				}
				r.Workload = w.Name
				rounds[i] = append(rounds[i], r)
			}
		}
		first := len(results)
		for i, some := range rounds {
			slices.SortFunc(some, func(a, b Result) int { return cmp.Compare(a.PerSecond, b.PerSecond) })
			median := some[len(some)/2]
			median.Rounds = len(some)
			results = append(results, median)
			if len(all) > 1 {
				results[len(results)-1].Broker = brokers[i].Name
			}
			if base := results[first].PerSecond; len(all) > 1 && base > 0 {
				results[len(results)-1].Ratio = median.PerSecond / base
			}
		}
	}
	return results, nil
}

// bench is one Run, on one broker.
type bench struct {
	connect Connect
	o       Options
	session string
	name    string           // with ": ", of one of several brokers; else empty
	address string           // of the broker
	burdens []*client.Client // connections held open for the whole run
	reading sync.WaitGroup   // of the dashboards
}

// chosen returns the workloads to run, and checks the options.
func (o *Options) chosen() ([]Workload, error) {
	if o.Size < MinSize {
		return nil, fmt.Errorf("size is %d; at least %d bytes are needed", o.Size, MinSize)
	}
	if o.Held < 0 || o.Waiting < 0 || o.Changes < 1 {
		return nil, fmt.Errorf("%d locks held, %d messages waiting and %d changes; at least 0, 0 and 1 are needed",
			o.Held, o.Waiting, o.Changes)
	}
	if o.Duration <= 0 {
		return nil, fmt.Errorf("duration is %v; it must be above 0", o.Duration)
	}
	all := Workloads()
	if len(o.Workloads) == 0 {
		return all, nil
	}
	var chosen []Workload
	for _, name := range o.Workloads {
		i := slices.IndexFunc(all, func(w Workload) bool { return w.Name == name })
		if i < 0 {
			names := each.Of(all, func(w Workload) string { return w.Name })
			return nil, fmt.Errorf("unknown workload %q; there are %s", name, strings.Join(names, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// openSession makes the session that everything happens in.
func (b *bench) openSession(ctx context.Context) error {
	c, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	b.address = c.Address()
	settings := &pb.SessionSettings{MailboxLimit: proto.Int64(0), SendRate: proto.Float64(0)}
	if b.o.Keep > 0 {
		settings.MessageRetention, settings.EventRetention = durationpb.New(b.o.Keep), durationpb.New(b.o.Keep)
	}
	_, err = c.As("").Sessions().CreateSession(ctx, &pb.CreateSessionRequest{
		Name:        b.session,
		Description: description,
		Settings:    settings,
	})
	if err != nil {
		return fmt.Errorf("make session %s: %w", b.session, err)
	}
	return nil
}

// description is that of the sessions of benchmarks.
const description = "brokerctl bench"

// join opens a connection of its own for an agent and registers it.
func (b *bench) join(ctx context.Context, name, role string) (*client.Client, error) {
	c, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	agent := c.In(b.session).As(name)
	if _, err := agent.Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: role}); err != nil {
		c.Close()
		return nil, fmt.Errorf("register %s: %w", name, err)
	}
	return agent, nil
}

// leave closes the connections that were open for the whole run.
func (b *bench) leave() {
	for _, c := range b.burdens {
		c.Close()
	}
}

func (b *bench) progress(format string, args ...any) {
	if b.o.Progress != nil {
		b.o.Progress(fmt.Sprintf(format, args...))
	}
}
