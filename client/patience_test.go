package client_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A call that finds no broker is made again when there is one, and what it changes is changed once.
func TestPatience_ACallOutlastsARestart(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	away := make(chan struct{}, 100)
	c, err := client.Dial(t.Context(), client.WithAddress(d.app.Addresses()[0]), client.WithPatience(apptest.Patience),
		client.WithRetryNotice(func(error, time.Duration) {
			select {
			case away <- struct{}{}:
			default:
			}
		}))
	apptest.NoError(t, err)
	defer c.Close()
	d.stop(t)
	value := &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "kept"}}
	done := make(chan error, 1)
	go func() {
		_, err := c.State().PutState(t.Context(), &pb.PutStateRequest{Key: "k", Value: value})
		done <- err
	}()
	next(t, away)
	d.start(t)
	apptest.NoError(t, next(t, done))
	got, err := c.State().GetState(t.Context(), &pb.GetStateRequest{Key: "k"})
	if err != nil || got.GetEntry().GetVersion() != 1 {
		t.Errorf("the key is %v, %v", got, err)
	}
}

// The same request id goes with each attempt. A refusal ends the call, and so does a broker that stays away.
func TestPatience_AttemptsAreOneRequest(t *testing.T) {
	t.Parallel()
	f, c := newFake(t, client.WithPatience(apptest.Patience))
	done := make(chan error, 1)
	ack := func(id string) {
		_, err := c.Messages().AckMessages(t.Context(), &pb.AckMessagesRequest{RequestId: id})
		done <- err
	}
	for _, given := range []string{"", "mine"} {
		go ack(given)
		var ids []string
		for _, answer := range []error{errCut, errCut, nil} {
			call := next(t, f.unary)
			ids = append(ids, call.request.(*pb.AckMessagesRequest).GetRequestId())
			call.answer <- answer
		}
		apptest.NoError(t, next(t, done))
		if ids[0] == "" || ids[1] != ids[0] || ids[2] != ids[0] || given != "" && ids[0] != given {
			t.Errorf("the request ids are %q, of a call with %q", ids, given)
		}
	}
	go ack("")
	next(t, f.unary).answer <- status.Error(codes.InvalidArgument, "refused")
	wantCode(t, next(t, done), codes.InvalidArgument)

	f, c = newFake(t, client.WithPatience(time.Nanosecond))
	go ack("")
	next(t, f.unary).answer <- errCut
	wantCode(t, next(t, done), codes.Unavailable)
}
