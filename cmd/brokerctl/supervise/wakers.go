package supervise

import (
	"context"
	"errors"
	"sync"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/setting"
)

// wakers are the ways in which agent run wakes its agent when mail waits.
type wakers struct {
	reporter *Reporter
	typist   *Typist // nil without --pty
	waker    *waker  // nil without --wake
}

// check returns the messages that wait for the agent.
func (w *wakers) check(ctx context.Context) ([]int64, error) {
	return mail.Waiting(ctx, w.reporter.broker)
}

// useCommand adds a shell command. Its output goes to standard error. When the run ends, the command
// receives SIGTERM and, later, SIGKILL.
func (w *wakers) useCommand(command string, from setting.Environment, env []string, hurry <-chan struct{}) {
	w.waker = &waker{mail: make(chan bool, 1), check: w.check}
	w.waker.run = func(ctx context.Context) error {
		shell, err := from.LookPath("sh")
		if err != nil {
			return err
		}
		p := &process{
			path: shell, args: []string{"sh", "-c", command}, env: env, dir: from.ChildDir(), stdout: w.reporter.Stderr, stderr: w.reporter.Stderr,
			grace: KillAfter, interrupted: context.Background(), hurry: hurry,
		}
		_, err = p.run(ctx)
		return err
	}
	w.waker.warn = func(err error) { w.reporter.sayf("the command of --wake failed: %v", err) }
}

// start watches the agent's mail until stop is called, which waits for the end of a running command.
func (w *wakers) start(ctx context.Context) (stop func()) {
	if w.typist == nil && w.waker == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.watch(ctx) })
	if w.typist != nil {
		running.Go(func() { w.typist.run(ctx) })
	}
	if w.waker != nil {
		running.Go(func() { w.waker.work(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

func (w *wakers) watch(ctx context.Context) {
	err := mail.Watch(ctx, w.reporter.broker, func(ctx context.Context) (bool, error) {
		waiting, err := w.check(ctx)
		if err != nil {
			return false, err
		}
		if w.typist != nil {
			w.typist.mail(waiting)
		}
		if w.waker != nil {
			w.waker.note(len(waiting) > 0)
		}
		return false, nil
	})
	switch reason := client.Reason(err); {
	case ctx.Err() != nil || errors.Is(err, context.Canceled):
	case reason == "STALE_INCARNATION" || reason == "AGENT_NOT_REGISTERED": // the next heartbeat reports it
	default:
		_, text := w.reporter.explain(err)
		w.reporter.sayf("mail wakes the agent no longer: %s", text)
	}
}
