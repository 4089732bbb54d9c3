package crashtest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/diskguard"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// A disk that another program has filled. Only root can make a small one.
func TestFullDisk_BrokerStartsAndAcceptsAcksAndDeletions(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	d := newDaemon(t, processtest.Build(t))
	if err := unix.Mount("none", d.Dir(), "tmpfs", 0, "size=48m,mode=0700"); err != nil {
		t.Skipf("cannot mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		d.Kill()
		if err := unix.Unmount(d.Dir(), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, d.Stderr())
		}
	}
	must(d.start(ctx))
	ctx = metadata.AppendToOutgoingContext(ctx, "brokerd-agent", "a")
	_, err := d.agents.RegisterAgent(ctx, &pb.RegisterAgentRequest{})
	must(err)
	send := func() error {
		_, err := d.messages.SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{
			{Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Body: "text"},
		}})
		return err
	}
	for range 5 {
		must(send())
	}
	filler := filepath.Join(d.Dir(), "filler")
	finish := func() { // a claim, an ack and a deletion, each at the second attempt at the latest
		t.Helper()
		again := func(call func() error) {
			t.Helper()
			if err := call(); err != nil && testkit.Reason(err) != "DISK_FULL" {
				t.Fatal(err)
			} else if err != nil {
				must(call())
			}
		}
		var claims *pb.ClaimMessagesResponse
		again(func() (err error) {
			claims, err = d.messages.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 1})
			return err
		})
		if len(claims.GetClaims()) != 1 {
			t.Fatalf("%d claims", len(claims.GetClaims()))
		}
		again(func() error {
			_, err := d.messages.AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{claims.GetClaims()[0].GetClaimId()}})
			return err
		})
		again(func() error {
			_, err := d.state.DeleteState(ctx, &pb.DeleteStateRequest{Namespace: "n", Key: "k"})
			return err
		})
		if err := send(); status.Code(err) != codes.ResourceExhausted || testkit.Reason(err) != "DISK_NEARLY_FULL" {
			t.Errorf("send: %v", err)
		}
		if _, err := os.Stat(filepath.Join(d.Dir(), diskguard.ReserveFile)); !os.IsNotExist(err) {
			t.Errorf("the reserve is there on a full disk (%v)", err)
		}
	}
	put := func() {
		t.Helper()
		_, err := d.state.PutState(ctx, &pb.PutStateRequest{
			Namespace: "n", Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "v"}},
		})
		must(err)
	}

	put()
	fill(t, filler)
	finish() // while it runs
	must(os.Remove(filler))
	d.Kill()
	must(d.start(ctx)) // it looks at the disk, and makes the reserve again
	must(send())
	put()
	d.Kill()
	fill(t, filler)
	must(d.start(ctx))
	finish() // after a start on the full disk
	wantDisk := func(text string) {
		t.Helper()
		explained, err := d.admin.Explain(metadata.NewOutgoingContext(ctx, nil), &pb.ExplainRequest{}) // as operator
		must(err)
		for _, f := range explained.GetFindings() {
			if f.GetSubject() == "disk" && strings.Contains(strings.Join(f.GetReasons(), "; "), text) {
				return
			}
		}
		t.Errorf("no finding about the disk says %q: %v", text, explained)
	}
	wantDisk("refuses to send until it is below 95 %; reading and acknowledging continue")
	fill(t, filler+"-2") // what the reserve has freed
	wantDisk("nothing can be sent, and acknowledgements and deletions may fail, until other files of the disk are removed")
	must(errors.Join(os.Remove(filler), os.Remove(filler+"-2")))
	must(d.Terminate())
	must(d.Check(ctx))
}

// fill writes a file until the disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	testkit.NoError(t, err)
	for size := 1 << 20; size > 0; { // then smaller pieces, to the last byte
		if _, err = f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	_ = f.Close()
}
