package vendortest

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/creack/pty"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fakemodel"
)

// open starts the program on a terminal.
func (r *run) open() {
	r.t.Helper()
	cmd := exec.Command(r.path()) //nolint:noctx // it is killed with its terminal
	cmd.Dir, cmd.Env = r.project, append(slices.Clone(r.variables), "TERM=xterm-256color")
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 45, Cols: 150})
	if err != nil {
		r.t.Fatal(err)
	}
	read := make(chan struct{})
	var screen bytes.Buffer
	go func() { // ends with the terminal
		defer close(read)
		_, _ = io.Copy(&screen, terminal)
	}()
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		_ = terminal.Close()
		<-read
		if r.t.Failed() {
			r.t.Logf("on the terminal: %q", screen.Bytes()[max(0, screen.Len()-5000):])
		}
	})
}

// A session that is idle reads its mail at once: before its first turn, and after one.
func TestScreen_MailWakesAnIdleSession(t *testing.T) {
	for i := range vendors {
		v := &vendors[i]
		if v.name != "claude-code" {
			continue // the others have no hook that wakes them
		}
		t.Run(v.name, func(t *testing.T) {
			r := newRun(t, v)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			accepted := make(chan error, 10)
			go func() {
				filter := &pb.EventFilter{Types: []string{"message.accepted"}}
				for _, err := range r.broker.FollowEvents(ctx, client.EventOptions{After: 0, Filter: filter}) {
					accepted <- err
				}
			}()
			r.open()
			for _, mail := range []string{"MAIL-before-a-turn", "MAIL-after-a-turn"} {
				sent := time.Now()
				id := r.send(mail)
				if _, err := r.model.Await(ctx, func(q *fakemodel.Request) bool { return q.Has(mail) }); err != nil {
					t.Fatal(mail, err)
				}
				t.Logf("%s: in a request after %v", mail, time.Since(sent).Round(time.Millisecond))
				select {
				case err := <-accepted:
					if o := r.delivery(id).GetOffers(); err != nil || len(o) != 1 || o[0].GetWay() != pb.OfferWay_OFFER_WAY_WAKE {
						t.Errorf("%v: %v", err, o)
					}
				case <-ctx.Done():
					t.Errorf("%s is not accepted: %v", mail, r.delivery(id))
				}
			}
			r.truthful()
		})
	}
}
