package bridge_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// The broker has written a notice to the bridge, and the bridge is stopped before the notice is in the
// folder: the place of the file is blocked until then.
func TestNotice_StaysUntilItIsInTheFolder(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		file  string // keeps the agent a in the folder
		block func(t *testing.T, d *team) (unblock func())
		read  func(d *team, count int) []string
	}{
		"jsonl":          {"mailbox/a.jsonl", blockMailbox, func(d *team, count int) []string { return d.awaitLines("a", count) }},
		"maildir":        {"messages/inbox/a/.keep", blockInbox(".bridge/inbox/a"), readInbox("messages/inbox/a/")},
		"agent-messages": {agentRoot + "inbox/a/.keep", blockInbox(agentRoot + ".bridge/inbox/a"), readInbox(agentRoot + "inbox/a/")},
	}
	for format, test := range tests {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			d.write(test.file, "")
			stop := d.start()
			d.awaitAgent("a")
			d.send(d.broker.Operator(), toAgent("a", "the bridge reads the mail"))
			test.read(d, 1)
			unblock := test.block(t, d)
			locks := pb.NewLockServiceClient(d.broker.Conn("a"))
			if _, err := locks.AcquireLocks(t.Context(), &pb.AcquireLocksRequest{Paths: []string{"go.mod"}}); err != nil {
				t.Fatal(err)
			}
			if _, err := pb.NewLockServiceClient(d.broker.Operator()).ForceReleaseLocks(t.Context(),
				&pb.ForceReleaseLocksRequest{Paths: []string{"go.mod"}, Reason: "for a test"}); err != nil {
				t.Fatal(err)
			}
			d.awaitEvents("the broker has written the notice to the bridge", func(ctx context.Context) bool {
				out, err := pb.NewEventServiceClient(d.broker.Operator()).ListEvents(ctx, &pb.ListEventsRequest{
					Filter: &pb.EventFilter{Types: []string{"message.delivered"}}})
				apptest.NoError(t, err)
				return len(out.GetEvents()) == 2
			})
			stop()
			unblock()
			d.start()
			if mail := test.read(d, 2); !strings.Contains(mail[1], "lock_revoked") {
				t.Errorf("the mail of a is %s", mail)
			}
		})
	}
}

// readInbox waits for a number of files, and returns their texts.
func readInbox(dir string) func(*team, int) []string {
	return func(d *team, count int) (texts []string) {
		for _, name := range d.awaitFiles(dir, count) {
			texts = append(texts, d.text(dir+name))
		}
		return texts
	}
}

// blockInbox puts a file in the place of the folder in which the bridge writes mail.
func blockInbox(dir string) func(*testing.T, *team) func() {
	return func(t *testing.T, d *team) func() {
		t.Helper()
		path := filepath.Join(d.dir, dir)
		apptest.NoError(t, os.Rename(path, path+".away"))
		apptest.NoError(t, os.WriteFile(path, nil, 0o644))
		return func() {
			apptest.NoError(t, errors.Join(os.Remove(path), os.Rename(path+".away", path)))
		}
	}
}

// blockMailbox holds the lock of a mailbox file.
func blockMailbox(t *testing.T, d *team) func() {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(d.dir, "mailbox/a.jsonl"), os.O_RDWR, 0)
	apptest.NoError(t, err)
	apptest.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	return func() { _ = f.Close() }
}
