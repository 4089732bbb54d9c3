// Package demo lets a small team of agents work in front of the reader, on a broker of its own.
//
//	lead ──tasks──► role:builder ──► builder-1, builder-2 ──question──► reviewer
//	  ▲                                  │
//	  └──────────── replies ─────────────┘
//
// In a second act they share files and a turn, and one of them crashes. Everything is done through the API, as agents of one's own would do it. Only how long they take is made up.
package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"brokerd/client"
	"brokerd/cmd/internal/childdaemon"
	pb "brokerd/gen/brokerd/v1"
)

// Options say how to run the demonstration.
type Options struct {
	Program string           // path of brokerd
	Out     io.Writer        // where the transcript goes
	Style   Style            // how it is written
	Now     func() time.Time // the clock
	Pace    float64          // how long the agents take: 1 is worth watching, 0 is at once
}

// Run starts a daemon on a temporary folder and runs the team. It leaves neither the daemon nor the
// folder behind, even if ctx ends early or Out fails. It returns the error of ctx or of Out, or the
// first error of the team.
func Run(ctx context.Context, o Options) (err error) {
	var log bytes.Buffer
	d, err := childdaemon.Start(ctx, o.Program, &log)
	if err != nil {
		return withLog(err, &log)
	}
	defer func() {
		if stopped := d.Stop(); err == nil {
			err = stopped
		}
	}()
	address, err := d.Address()
	if err != nil {
		return err
	}
	broker, err := client.Dial(ctx, client.WithAddress(address))
	if err != nil {
		return err
	}
	defer broker.Close()

	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-d.Ended(): // the team would wait for it to come back
			cancel(withLog(d.Failure(), &log))
		case <-ctx.Done():
		}
	}()
	t := newTranscript(&outlet{o.Out, cancel}, o.Now, o.Style)
	t.line("%s", t.paint(bold, "Four agents and one broker, in a folder that is removed afterwards. Ctrl-C ends it."))
	t.line("")
	team := newTeam(broker, t, pace(o.Pace))
	if err = team.run(ctx); err == nil {
		err = team.share(ctx)
	}
	if err == nil {
		err = closing(ctx, broker, t, team.counts)
	}
	if err == nil {
		next(t)
	}
	if caller.Err() != nil {
		return caller.Err()
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// An outlet ends the demonstration when its output fails, for example because the reader of a pipe
// has ended.
type outlet struct {
	io.Writer
	fail context.CancelCauseFunc
}

// Write implements io.Writer.
func (o *outlet) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if err != nil {
		o.fail(err)
	}
	return n, err
}

// withLog adds the log of a daemon that has ended to an error.
func withLog(err error, log *bytes.Buffer) error {
	if text := strings.TrimSpace(log.String()); text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// closing shows what the log has counted, and how each message stands.
func closing(ctx context.Context, broker *client.Client, t *transcript, counts map[string]int) error {
	t.title("What the event log has counted")
	var types []string
	for name := range counts {
		types = append(types, name)
	}
	slices.Sort(types)
	for row := range slices.Chunk(types, t.style.columns(25, 3)) {
		var line strings.Builder
		for _, name := range row {
			fmt.Fprintf(&line, "%-20s%3d  ", name, counts[name])
		}
		t.line("%s", strings.TrimRight(line.String(), " "))
	}

	t.title("How each message stands")
	list, err := broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL})
	if err != nil {
		return err
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REVISION\tFROM\tTYPE\tSTATE\tSUBJECT")
	for _, item := range list.GetItems() {
		m := item.GetMessage()
		one, err := broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: m.GetId()})
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", m.GetRevision(), m.GetSender(), m.GetType(), states(one.GetDeliveries()), m.GetSubject())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		t.line("%s", strings.TrimRight(line, " \n"))
	}
	return nil
}

// states says how the deliveries of a message stand: ACKED, or ACKED ×3.
func states(deliveries []*pb.Delivery) string {
	var found []string
	counts := map[string]int{}
	for _, d := range deliveries {
		name := strings.TrimPrefix(d.GetState().String(), "DELIVERY_STATE_")
		if counts[name]++; counts[name] == 1 {
			found = append(found, name)
		}
	}
	for i, name := range found {
		if n := counts[name]; n > 1 {
			found[i] = fmt.Sprintf("%s ×%d", name, n)
		}
	}
	return strings.Join(found, ", ")
}

// next says where to go on.
func next(t *transcript) {
	t.title("What to try next")
	t.line("  brokerd                                       a broker that stays; let it run")
	t.line("  brokerctl agent register me --role builder    be one of a team")
	t.line("  docs/getting-started.md                       two shells as two agents")
}
