// Package demo shows a small team of agents at work, on a separate broker or in a separate session.
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
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

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
	// Here is an operator of the broker on which the demonstration runs, in a session that it makes and deletes; nil for a
	// broker that it starts. Variables then lead to that broker.
	Here *client.Client
	// Dashboard returns the lines with the link of the dashboard. If it is set, the team works without end
	// on a broker with a TCP address; else it plays two acts.
	Dashboard func(context.Context, *client.Client) (string, error)
}

// Run starts a daemon on a temporary folder, or makes a session, and runs the team. It leaves none of them behind, even
// if ctx ends early or Out fails. It returns the error of ctx or of Out, or the first error of the team.
func Run(ctx context.Context, o Options) (err error) {
	if o.Here != nil {
		return runHere(ctx, o)
	}
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
		return ended(caller, ctx, runCrew(ctx, address, o))
	}
	broker, err := client.Dial(ctx, client.WithAddress(address))
	if err != nil {
		return ended(caller, ctx, err)
	}
	defer broker.Close()
	o.Variables = append(without(o.Variables, "BROKERD_"), "BROKERD_ADDR="+address)
	return ended(caller, ctx, playActs(ctx, d.Dir(), broker, o))
}

// runHere runs the team in a session of a broker that is there.
func runHere(ctx context.Context, o Options) (err error) {
	dir, err := os.MkdirTemp("", "brokerd-demo")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	session := "demo-" + uuid.NewString()[:8]
	broker := o.Here.As("").In(session)
	request := &pb.CreateSessionRequest{Name: session, Description: "brokerctl demo --here"}
	if _, err := broker.Sessions().CreateSession(ctx, request); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove(context.WithoutCancel(ctx), broker, session)) }()
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	o.Out = &outlet{o.Out, cancel}
	for _, own := range []string{"SESSION", "AGENT", "INCARNATION", "FENCE", "ROOT"} {
		o.Variables = without(o.Variables, "BROKERD_"+own+"=")
	}
	o.Variables = append(o.Variables, "BROKERD_SESSION="+session)
	return ended(caller, ctx, playActs(ctx, dir, broker, o))
}

// remove closes and deletes the session of the demonstration.
func remove(ctx context.Context, broker *client.Client, session string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	if _, err := broker.Sessions().CloseSession(ctx, &pb.CloseSessionRequest{Name: session}); err != nil {
		return err
	}
	_, err := broker.Sessions().DeleteSession(ctx, &pb.DeleteSessionRequest{Name: session})
	return err
}

// removeTime is the most for the end of the session, at a broker that may be away.
const removeTime = 30 * time.Second

// ended returns with what a demonstration has ended: the error of its caller, the cause of its own end, or its error.
func ended(caller, ctx context.Context, err error) error {
	if caller.Err() != nil {
		return caller.Err()
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// without returns the variables that do not begin with a text.
func without(variables []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(variables), func(v string) bool { return strings.HasPrefix(v, prefix) })
}

// playActs shows the two acts and what remains of them.
func playActs(ctx context.Context, dir string, broker *client.Client, o Options) error {
	s := newScreen(o.Out, o.Now, o.Style)
	s.introduce(o.Here != nil)
	err := newTeam(o.Brokerctl, o.Variables, dir, s, pace(o.Pace)).play(ctx)
	if err == nil && !o.Style.JSON {
		err = closing(ctx, broker, s)
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
func closing(ctx context.Context, broker *client.Client, s *screen) error {
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
