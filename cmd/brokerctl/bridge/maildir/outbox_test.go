package maildir_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/maildir"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOutbox_FileWithALongNameTakenBeforeAKillIsSent(t *testing.T) {
	t.Parallel()
	broker := apptest.Start(t)
	lead := pb.NewMessageServiceClient(broker.Registered("lead", "lead"))
	root, err := os.OpenRoot(t.TempDir())
	apptest.NoError(t, err)
	defer root.Close() //nolint:errcheck // a folder
	// The first 200 bytes of the name are that of a temporary file.
	name := "messages/outbox/a/" + strings.Repeat("x", 196) + ".tmp" + strings.Repeat("y", 40) + ".json"
	apptest.NoError(t, root.MkdirAll("messages/outbox/a", 0o755))
	apptest.NoError(t, root.MkdirAll(".bridge/sending/a", 0o755))
	apptest.NoError(t, root.WriteFile(name, []byte(`{"to":"lead","body":"long"}`), 0o644))
	apptest.NoError(t, maildir.Take(root, name, "a"))

	c, err := client.Dial(t.Context(), client.WithAddress(broker.Socket()))
	apptest.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- engine.Run(ctx, maildir.Kind(), engine.Options{Client: c, Dir: root.Name(), Rescan: 50 * time.Millisecond,
			Settle: 100 * time.Millisecond, Log: func(string) {}})
	}()
	out, err := lead.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Wait: durationpb.New(apptest.Patience)})
	if err != nil || len(out.GetClaims()) == 0 || out.GetClaims()[0].GetMessage().GetBody() != "long" {
		t.Errorf("lead has received %v, %v", out.GetClaims(), err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the bridge ended with: %v", err)
	}
}
