// Package bench drives a broker with the workloads that brokers are compared by, and measures how many messages a second
// are sent, confirmed on disk, delivered and acknowledged, and how long they take.
//
// It works in a session of its own with the quota off. Every sender and consumer is an agent on a connection
// of its own, and speaks the streams of the API directly.
package bench

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// MinSize is the smallest payload in bytes: it must hold the time at which it was sent, as JSON.
const MinSize = 18

// A Workload says how hard, and in what shape, the queue is driven.
type Workload struct {
	Name      string
	Senders   int
	Batch     int // messages confirmed together
	Consumers int
	Claims    int           // held at the same time by one consumer, each acknowledged by itself
	Pace      time.Duration // wait between two sends of one sender; 0 = as fast as it can
}

// Workloads returns those that brokers are compared by.
func Workloads() []Workload {
	return []Workload{
		{Name: "agents", Senders: 64, Batch: 1, Consumers: 8, Claims: 64},
		{Name: "pipelined", Senders: 4, Batch: 256, Consumers: 4, Claims: 256},
		{Name: "paced", Senders: 20, Batch: 1, Consumers: 20, Claims: 1, Pace: 20 * time.Millisecond},
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
	Keep        time.Duration // how long finished messages and events are kept; 0 = the default
	Numbered    bool          // senders number their messages, so that the broker recognises repeated ones
	Progress    func(text string)
}

// A Result is what one workload came to.
type Result struct {
	Workload  string
	Rounds    int
	Messages  int           // confirmed, delivered and acknowledged
	Took      time.Duration // from the first send to the last acknowledgement
	PerSecond float64
	// From the beginning of a send to the delivery, of the slowest of 50, 95 and 99 in a hundred.
	P50, P95, P99 time.Duration
}

// Connect opens a new connection with an operator's rights.
type Connect func(ctx context.Context) (*client.Client, error)

// Run measures and returns one result a workload. It fails if a message was refused or not acknowledged.
func Run(ctx context.Context, connect Connect, o Options) ([]Result, error) {
	chosen, err := o.chosen()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &bench{connect: connect, o: o, session: "bench-" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12]}
	defer b.leave()
	if err := b.openSession(ctx); err != nil {
		return nil, err
	}
	if err := b.burden(ctx); err != nil {
		return nil, err
	}
	var results []Result
	for _, w := range chosen {
		var rounds []Result
		for round := range max(o.Rounds, 1) {
			b.progress("%s: round %d of %d", w.Name, round+1, max(o.Rounds, 1))
			r, err := b.measure(ctx, w, round)
			if err != nil {
				return results, fmt.Errorf("workload %s: %w", w.Name, err)
			}
			rounds = append(rounds, r)
		}
		slices.SortFunc(rounds, func(a, b Result) int { return cmp.Compare(a.PerSecond, b.PerSecond) })
		median := rounds[len(rounds)/2]
		median.Rounds = len(rounds)
		results = append(results, median)
	}
	return results, nil
}

// bench is one Run.
type bench struct {
	connect Connect
	o       Options
	session string
	burdens []*client.Client // connections held open for the whole run
}

// chosen returns the workloads to run, and checks the options.
func (o *Options) chosen() ([]Workload, error) {
	if o.Size < MinSize {
		return nil, fmt.Errorf("size is %d; at least %d bytes are needed", o.Size, MinSize)
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
			names := make([]string, len(all))
			for i, w := range all {
				names[i] = w.Name
			}
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
	settings := &pb.SessionSettings{MailboxLimit: proto.Int64(0), SendRate: proto.Float64(0)}
	if b.o.Keep > 0 {
		settings.MessageRetention, settings.EventRetention = durationpb.New(b.o.Keep), durationpb.New(b.o.Keep)
	}
	_, err = c.As("").Sessions().CreateSession(ctx, &pb.CreateSessionRequest{
		Name:        b.session,
		Description: "brokerctl bench",
		Settings:    settings,
	})
	if err != nil {
		return fmt.Errorf("make session %s: %w", b.session, err)
	}
	return nil
}

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
