package calls_test

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/finding"
	"brokerd/internal/jsonform"
	"brokerd/internal/testkit"
)

func TestRead_FailsForAMethodOrAFieldOfANewerBroker(t *testing.T) {
	for _, c := range []*pb.Call{
		{Method: "/brokerd.v1.TaskService/Frob", Request: "{}"},
		{Method: "/brokerd.v1.Task", Request: "{}"},
		{Method: "/brokerd.v1.TaskService/GetTask", Request: `{"id":"t","depth":1}`},
		{},
	} {
		if got, err := calls.Read(c); err == nil {
			t.Errorf("%v is read as %v", c, got)
		}
	}
	whole := calls.Call{Request: &pb.RegisterAgentRequest{Role: "r"}, Agent: "a", Missing: []string{"lease"},
		Program: []string{"x"}}
	got, err := calls.Read(whole.Proto())
	if err != nil || !proto.Equal(got.Proto(), whole.Proto()) {
		t.Errorf("got %v, %v, want %v", got, err, whole)
	}
}

func TestShows_IsTrueForCallsThatChangeNothing(t *testing.T) {
	for request, want := range map[proto.Message]bool{
		&pb.GetTaskRequest{}: true, &pb.ListLocksRequest{}: true, &pb.ExplainRequest{}: true, &pb.RetryTaskRequest{}: false,
	} {
		if call := calls.Do(request); call.Shows() != want {
			t.Errorf("%s: want %t", call.Name(), want)
		}
	}
}

func TestCall_IsARequestOfTheAPIForEachReader(t *testing.T) {
	for want, call := range map[string]calls.Call{
		`RedriveDeadLetters {"ids":["7"],"mailbox":"role:it's"}`: calls.Do(
			&pb.RedriveDeadLettersRequest{Ids: []string{"7"}, Mailbox: "role:it's"}),
		`builder-1: ReleaseClaims {"ids":["7.1"]}`: calls.Do(
			&pb.ReleaseClaimsRequest{Ids: []string{"7.1"}}).As("builder-1"),
		`SendMessages {"messages":[{"target":{"channel":"c"},"type":"nudge","subject":"look","priority":10}]}`: finding.Direct(
			"nudge", &pb.Target{To: &pb.Target_Channel{Channel: "c"}}, "look"),
		`a: RegisterAgent {"role":"r","capabilities":["x","y"],"labels":{"k":"a=<b>"},"lease":"3600.500s"}`: calls.Do(
			&pb.RegisterAgentRequest{Role: "r", Capabilities: []string{"x", "y"}, Labels: map[string]string{"k": "a=<b>"},
				Lease: durationpb.New(36005e8)}).As("a"),
		`ForceReleaseLocks {"revisions":["7","1152921504606846977"],"reason":"--why"}`: calls.Do(
			&pb.ForceReleaseLocksRequest{Revisions: []int64{7, 1<<60 + 1}, Reason: "--why"}),
		`ConfigureSession {"settings":{"mailbox_limit":"2000"}}`: calls.Do(
			&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{MailboxLimit: proto.Int64(2000)}}),
		`Decide {"id":"d-7","verdict":"defer"} until`: calls.Do(&pb.DecideRequest{Id: "d-7", Verdict: "defer"}, "until"),
		`ListMessages {"box":"MESSAGE_BOX_INBOX"}`: calls.Do(
			&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX}),
		`Explain {"task":"t"}`: finding.Explain(finding.Task, "t"),
	} {
		got := call.Proto()
		if text := testkit.Call(got); text != want {
			t.Errorf("got %s, want %s", text, want)
		}
		for name, read := range map[string]func(proto.Message) error{
			"protojson": func(m proto.Message) error { return protojson.Unmarshal([]byte(got.GetRequest()), m) },
			"HTTP":      func(m proto.Message) error { return jsonform.Decode([]byte(got.GetRequest()), m) },
		} {
			m := call.Request.ProtoReflect().New().Interface()
			if err := read(m); err != nil || !proto.Equal(m, call.Request) {
				t.Errorf("%s reads %s as %v: %v", name, got.GetRequest(), m, err)
			}
		}
	}
}
