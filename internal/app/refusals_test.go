package app_test

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

func TestRefusals_OfItemsOfStreamsAreLogged(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.InfoLevel)
	b := apptest.Start(t, apptest.With(func(c *app.Config) { c.Log = zap.New(core) }))
	conn := b.Registered("lead", "")
	sends, err := pb.NewMessageServiceClient(conn).Send(patient(t))
	apptest.NoError(t, err)
	target := &pb.Target{To: &pb.Target_Agent{Agent: "hidden"}}
	apptest.NoError(t, sends.Send(&pb.SendRequest{Messages: []*pb.Message{{Target: target}}}))
	apptest.NoError(t, apptest.Err(sends.Recv()))
	locks, err := pb.NewLockServiceClient(conn).Lock(patient(t))
	apptest.NoError(t, err)
	acquire := &pb.LockRequest_Acquire{Acquire: &pb.AcquireLocksRequest{Paths: []string{"/hidden"}}}
	apptest.NoError(t, locks.Send(&pb.LockRequest{Number: 1, Request: acquire}))
	apptest.NoError(t, apptest.Err(locks.Recv()))
	want := map[string]string{"MessageService/Send": "AGENT_NOT_FOUND", "LockService/Lock": "INVALID_ARGUMENT"}
	for _, line := range logged.FilterMessage("an item of a stream was refused").All() {
		f := line.ContextMap()
		method, _ := f["method"].(string)
		if f["reason"] != want[method] || f["session"] != "default" || f["agent"] != "lead" || f["remote"] != "local peer" {
			t.Errorf("the line is %v", f)
		}
		delete(want, method)
	}
	if len(want) > 0 {
		t.Errorf("without a line: %v", want)
	}
}
