package bridge_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// startProcess runs brokerctl bridge as a process. kill sends SIGKILL and waits for its end.
func (d *team) startProcess(brokerctl string) (kill func()) {
	d.t.Helper()
	kill, _ = d.startBridge(brokerctl, d.broker.Socket(), "1s")
	return kill
}

// A bridgeLog is what a bridge writes.
type bridgeLog struct {
	text  bytes.Buffer
	ready chan struct{} // closed when the bridge has taken the folder over
	begun bool
}

// Write implements io.Writer.
func (l *bridgeLog) Write(p []byte) (int, error) {
	n, err := l.text.Write(p)
	if !l.begun && strings.Contains(l.text.String(), "synchronises ") {
		l.begun = true
		close(l.ready)
	}
	return n, err
}

// startBridge is startProcess for the broker at an address.
func (d *team) startBridge(brokerctl, address, settle string) (kill func(), ready <-chan struct{}) {
	d.t.Helper()
	log := &bridgeLog{ready: make(chan struct{})}
	child := exec.Command(brokerctl, "--addr", address, "bridge", d.format, d.dir, "--rescan", "50ms", "--settle", settle)
	child.Env, child.Stderr = processtest.Environment(d.t), log
	apptest.NoError(d.t, child.Start())
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = child.Process.Kill()
			_ = child.Wait()
		}
	}
	d.t.Cleanup(func() {
		if kill(); d.t.Failed() {
			d.t.Logf("a bridge logged:\n%s", log.text.String())
		}
	})
	return kill, log.ready
}

// A moment is a change of the folder at which a bridge is killed.
type moment struct {
	dir string
	op  fsnotify.Op
}

// killAt runs a bridge and kills it at a moment.
func (d *team) killAt(brokerctl string, m moment) {
	d.t.Helper()
	watcher, err := fsnotify.NewWatcher()
	apptest.NoError(d.t, err)
	defer watcher.Close() //nolint:errcheck // nothing to do about it
	apptest.NoError(d.t, os.MkdirAll(filepath.Join(d.dir, m.dir), 0o755))
	apptest.NoError(d.t, watcher.Add(filepath.Join(d.dir, m.dir)))
	defer d.startProcess(brokerctl)()
	limit := time.NewTimer(apptest.Patience)
	defer limit.Stop()
	for {
		select {
		case e := <-watcher.Events:
			if e.Has(m.op) {
				return
			}
		case <-limit.C:
			d.t.Fatalf("no %v in %s", m.op, m.dir)
		}
	}
}

func TestKill_EveryMessageCrossesOnceAndInOrder(t *testing.T) {
	t.Parallel()
	const perRound = 5
	tests := map[string]struct {
		moments []moment
		write   func(d *team, n int, body string) // as the agent a of the folder, to lead
		read    func(d *team, count int) []string // the mail of a, in order
	}{
		"maildir": {
			moments: []moment{
				{".bridge/sending/a", fsnotify.Create}, {".bridge/sending/a", fsnotify.Remove},
				{".bridge/inbox/a", fsnotify.Create}, {"messages/inbox/a", fsnotify.Create},
			},
			write: func(d *team, n int, body string) {
				d.write(fmt.Sprintf("messages/outbox/a/%04d.json", n), fmt.Sprintf(`{"to":"lead","body":%q}`, body))
			},
			read: func(d *team, count int) []string {
				var bodies []string
				for _, name := range d.awaitFiles("messages/inbox/a", count) {
					bodies = append(bodies, d.object("messages/inbox/a/" + name)["body"].(string))
				}
				return bodies
			},
		},
		"jsonl": {
			moments: []moment{{"mailbox", fsnotify.Create}, {"mailbox", fsnotify.Write}, {"mailbox", fsnotify.Write}, {"mailbox", fsnotify.Write}},
			write: func(d *team, _ int, body string) {
				d.appendLine("lead", fmt.Sprintf(`{"FromAgentId":"a","ToAgentId":"lead","Content":%q}`, body)+"\n")
			},
			read: func(d *team, count int) []string {
				var bodies []string
				for _, line := range d.awaitLines("a", count) {
					bodies = append(bodies, object(d.t, line)["Content"].(string))
				}
				return bodies
			},
		},
	}
	brokerctl := filepath.Join(filepath.Dir(processtest.Build(t)), "brokerctl")
	for format, test := range tests {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			lead := d.broker.Registered("lead", "lead")
			stop := d.start() // takes the folder over and registers the agent
			test.write(d, 0, "hello")
			d.claim(lead, 1)
			stop()
			var want []string
			for _, m := range test.moments {
				for range perRound {
					body := fmt.Sprint(len(want) + 1)
					want = append(want, body)
					test.write(d, len(want), body)
					d.send(lead, toAgent("a", body))
				}
				d.killAt(brokerctl, m)
			}
			defer d.startProcess(brokerctl)()
			if diff := cmp.Diff(want, test.read(d, len(want))); diff != "" {
				t.Errorf("the mail of a: %s", diff)
			}
			var got []string
			for _, m := range d.claim(lead, len(want)) {
				got = append(got, m.GetBody())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the mail of lead: %s", diff)
			}
			d.awaitSent("a", len(want)+1)
		})
	}
}
