// Package demo shows a small team of agents at work, on a broker of its own.
//
//	lead ──tasks──► role:builder ──► builder-1, builder-2 ──question──► reviewer
//	  ▲                                  │
//	  └──────────── replies ─────────────┘
//
// In a second act the team shares files and a turn, and one agent crashes. Every action is a
// brokerctl command in a process of its own, so that a reader can repeat what the demo shows. Only
// the time that the work takes is invented.
//
// For the dashboard, a crew works without end in place of the two acts.
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
	"brokerd/internal/prompt"
)

// Options say how to run the demonstration.
type Options struct {
	Brokerd   string           // path of the daemon
	Brokerctl string           // path of the command
	Out       io.Writer        // where the demonstration appears
	Style     Style            // how it appears
	Now       func() time.Time // the clock
	Variables []string         // NAME=VALUE, for the daemon and the commands
	Pace      float64          // how long the agents take: 1 is a comfortable speed, 0 is no time
	// Dashboard returns the lines with the link of the dashboard. If it is set, the team works without end
	// on a broker with a TCP address; else it plays two acts.
	Dashboard func(context.Context, *client.Client) (string, error)
}

// Run starts a daemon on a temporary folder and runs the team. It leaves neither the daemon nor the
// folder behind, even if ctx ends early or Out fails. It returns the error of ctx or of Out, or the
// first error of the team.
func Run(ctx context.Context, o Options) (err error) {
	var log bytes.Buffer
	args := []string{"--sync", "normal"} // the data need not survive a power failure: neither does the folder
	if o.Dashboard != nil {
		args = append(args, "--listen", "127.0.0.1:0")
	}
	d, err := childdaemon.Start(ctx, o.Brokerd, "", o.Variables, &log, args...)
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
	o.Out = &outlet{o.Out, cancel}
	if o.Dashboard != nil {
		err = runCrew(ctx, address, o)
	} else {
		err = playActs(ctx, d.Dir(), address, o)
	}
	if caller.Err() != nil {
		return caller.Err()
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// playActs shows the two acts and what remains of them.
func playActs(ctx context.Context, dir, address string, o Options) error {
	s := newScreen(o.Out, o.Now, o.Style)
	s.introduce()
	err := newTeam(o.Brokerctl, o.Variables, dir, address, s, pace(o.Pace)).play(ctx)
	if err == nil && !o.Style.JSON {
		err = closing(ctx, address, s)
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

// closing lists the messages with the states of their deliveries, and what to try next.
func closing(ctx context.Context, address string, s *screen) error {
	broker, err := client.Dial(ctx, client.WithAddress(address))
	if err != nil {
		return err
	}
	defer broker.Close()
	list, err := broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL})
	if err != nil {
		return err
	}
	s.title("What became of each message")
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REV\tFROM\tSTATE\tTEXT")
	for _, item := range list.GetItems() {
		m := item.GetMessage()
		if m.GetSender() == "system" { // a notice of the broker
			continue
		}
		one, err := broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: m.GetId()})
		if err != nil {
			return err
		}
		text := m.GetSubject() + prompt.Either(m.GetBody() != "", ": "+m.GetBody(), "")
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", m.GetRevision(), m.GetSender(), states(one.GetDeliveries()), text)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		s.line(strings.TrimRight(line, " \n"))
	}
	s.title("What to try next")
	s.line("brokerctl demo --pace 0 | less    every command of this demo, in order")
	s.line("brokerd                           start a broker; the same commands work there")
	s.line("docs/getting-started.md           two agents, step by step")
	return nil
}

// states returns the states of the deliveries of a message: acked, or acked ×3.
func states(deliveries []*pb.Delivery) string {
	var found []string
	counts := map[string]int{}
	for _, d := range deliveries {
		name := strings.ToLower(strings.TrimPrefix(d.GetState().String(), "DELIVERY_STATE_"))
		if counts[name]++; counts[name] == 1 {
			found = append(found, name)
		}
	}
	for i, name := range found {
		if n := counts[name]; n > 1 {
			found[i] = fmt.Sprintf("%s ×%d", name, n)
		}
	}
	slices.Sort(found)
	return strings.Join(found, ", ")
}
