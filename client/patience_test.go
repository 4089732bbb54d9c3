package client_test

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

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

// A question whose answer is lost with the broker is asked once, and its reply comes to the same call.
func TestPatience_AQuestionIsAskedOnce(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	away := make(chan struct{}, 1)
	c, err := client.Dial(t.Context(), client.WithAddress(d.app.Addresses()[0]), client.WithAgent("asks"),
		client.WithPatience(apptest.Patience), client.WithRetryNotice(func(error, time.Duration) {
			select {
			case away <- struct{}{}:
			default:
			}
		}))
	apptest.NoError(t, err)
	defer c.Close()
	apptest.NoError(t, apptest.Err(c.Agents().RegisterAgent(t.Context(), &pb.RegisterAgentRequest{})))
	other := d.agent(t, "answers", "")
	type reply struct {
		*pb.AskResponse
		error
	}
	replied := make(chan reply, 1)
	go func() {
		ask := &pb.AskRequest{Message: to("answers", "why?"), Wait: durationpb.New(apptest.Patience)}
		out, err := c.Messages().Ask(t.Context(), ask)
		replied <- reply{out, err}
	}()
	claim := &pb.ClaimMessagesRequest{Max: 10, Wait: durationpb.New(apptest.Patience)}
	apptest.NoError(t, apptest.Err(other.Messages().ClaimMessages(t.Context(), claim)))
	d.stop(t)
	next(t, away)
	d.start(t)
	claimed, err := d.agent(t, "answers", "").Messages().ClaimMessages(t.Context(), claim)
	if err != nil || len(claimed.GetClaims()) != 1 {
		t.Fatalf("claimed %v, %v", claimed.GetClaims(), err)
	}
	asked := claimed.GetClaims()[0].GetMessage().GetId()
	_, err = d.agent(t, "answers", "").Messages().Reply(t.Context(), &pb.ReplyRequest{
		Id: asked, Message: &pb.Message{Body: "because"}})
	apptest.NoError(t, err)
	if got := next(t, replied); got.error != nil || got.GetReply().GetBody() != "because" {
		t.Errorf("the answer is %v, %v", got.AskResponse, got.error)
	}
}

// Only a call that has waited may be made for longer than its patience.
func TestPatience_ALateRefusalIsNoWait(t *testing.T) {
	t.Parallel()
	const long = 4 * time.Second
	info := &errdetails.ErrorInfo{Reason: "NO_LEADER", Domain: "brokerd.v1"}
	noLeader, err := status.New(codes.Unavailable, "").WithDetails(info)
	apptest.NoError(t, err)
	for name, c := range map[string]struct {
		wait, took time.Duration
		err        error
		want       bool
	}{
		"it waited":                      {time.Minute, long, errCut, true},
		"it was lost at once":            {time.Minute, time.Second, errCut, false},
		"it does not wait":               {0, long, errCut, false},
		"it was refused after some time": {time.Minute, long, noLeader.Err(), false},
	} {
		if got := client.Waited(c.wait, c.took, c.err); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
