// Package top is the screen of `brokerctl top`: the session in eight views, live, on a terminal.
//
// The Model is a function of its state and of the messages of bubbletea. It makes no call: Update
// returns commands, which bubbletea runs, and whose results are messages again.
//
//	follower ──frameMsg──► Model ──View──► screen
//	keys ────────────────►   │
//	                         └─ tea.Cmd ──RPC──► answerMsg: loadedMsg, openedMsg, countedMsg, …
//
// Frames carry most of what the views show. A view whose data is not in the frames loads it while it
// is visible, after a change and at most once a second. Agents wrote most of the shown text, so
// every text passes prompt.Clean on its way to the screen.
package top

import (
	"context"
	"errors"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// Options say how the screen appears.
type Options struct {
	// Color permits escape codes for colour.
	Color bool
	// Now is the clock.
	Now func() time.Time
	// Command writes a call that the broker proposes as a command line of this run.
	Command func(*pb.Call) string
	// Explain returns the text of an error for people.
	Explain func(error) string
}

// Run shows the session of a client on a terminal until the user quits or ctx ends. connect returns
// the client; lost must be its retry notice. If the broker refuses the overview, Run returns the error
// before it changes the terminal. It returns the error of ctx.
func Run(ctx context.Context, in io.Reader, out io.Writer, o Options,
	connect func(lost func(err error, in time.Duration)) (*client.Client, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var program *tea.Program
	broker, err := connect(func(err error, _ time.Duration) { program.Send(lostMsg{err}) })
	if err != nil {
		return err
	}
	observer, err := admitted(ctx, broker)
	if err != nil {
		return err
	}
	frames := &follower{broker: broker, send: func(msg tea.Msg) { program.Send(msg) }}
	watch := func(session string) tea.Cmd {
		return func() tea.Msg {
			frames.follow(ctx, session)
			return nil
		}
	}
	program = tea.NewProgram(New(o, observer, caller(ctx, broker), watch), tea.WithContext(ctx), tea.WithInput(in),
		tea.WithOutput(out), tea.WithoutSignalHandler())
	frames.follow(ctx, broker.Identity().Session)
	last, err := program.Run()
	ended := ctx.Err()
	cancel()
	frames.end()
	if ended != nil { // the error of the program only says that
		return ended
	}
	if m, ok := last.(Model); ok {
		err = errors.Join(err, m.err)
	}
	return err
}

// admitted returns the error of a caller that may not watch the overview, and reports whether the broker
// refuses every change of the caller: observers may not read the status of the daemon.
func admitted(ctx context.Context, broker *client.Client) (observer bool, err error) {
	stream, err := broker.Admin().WatchOverview(ctx, &pb.WatchOverviewRequest{Once: true})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		return false, err
	}
	_, err = broker.Admin().GetStatus(ctx, &pb.GetStatusRequest{})
	if status.Code(err) == codes.PermissionDenied {
		return true, nil
	}
	return false, err
}

// callTimeout bounds a call.
const callTimeout = 30 * time.Second

// A call does the work of a command and returns the message with its result.
type call func(ctx context.Context, broker *client.Client) tea.Msg

// caller returns the function that makes a command of a call. Calls end with ctx.
func caller(ctx context.Context, broker *client.Client) func(call) tea.Cmd {
	return func(do call) tea.Cmd {
		return func() tea.Msg {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			return do(ctx, broker)
		}
	}
}
