package bridge_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"brokerd/cmd/brokerctl/bridge"
	"brokerd/internal/apptest"
)

func TestInbox_FileThatIsMissingForAMomentIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	d.broker.Registered("scout", "scout")
	id := d.send(d.broker.Registered("lead", "lead"), toAgent("scout", "x")).GetId()
	in := bridge.NewInbox(d.client(), openRoot(t, d.dir), "scout", id)
	d.write("inbox/other", "")
	for range 2 {
		if n, err := in.Settle(t.Context()); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		d.write("inbox/m.json", `{"status": "read"}`)
		if n, err := in.Settle(t.Context()); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		apptest.NoError(t, os.Remove(filepath.Join(d.dir, "inbox/m.json")))
		if status, err := in.Status(); status != "" || err != nil {
			t.Fatal(status, err)
		}
		d.write("inbox/m.json", `{"status": "read"}`)
		if status, err := in.Status(); status != "read" || err != nil {
			t.Fatal(status, err)
		}
		apptest.NoError(t, os.Remove(filepath.Join(d.dir, "inbox/m.json")))
	}
}

func TestInbox_FileThatIsRemovedWhileTheBridgeReadsItIsNoError(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	in := bridge.NewInbox(d.client(), openRoot(t, d.dir), "scout", "id")
	d.write("inbox/other", "")
	file := filepath.Join(d.dir, "inbox/m.json")
	done, removed := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-done:
				removed <- nil
				return
			default:
				err = errors.Join(os.WriteFile(file, nil, 0o600), os.Remove(file))
			}
		}
		removed <- err
	}()
	for range 5000 { // enough that a call meets the removal
		if _, err := in.Status(); err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	apptest.NoError(t, <-removed)
}
