package main

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
)

const patience = 3 * time.Minute

func TestAgent_WorksAsksReportsAndGivesUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, name := range []string{"ADDR", "SESSION", "AGENT", "INCARNATION", "CREDENTIAL_FILE"} {
		t.Setenv("BROKERD_"+name, "")
	}
	data := t.TempDir()
	t.Setenv("BROKERD_DATA", data)
	daemon, err := app.Start(ctx, app.Config{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := daemon.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	broker, err := client.FromEnvironment(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	for name, role := range map[string]string{"lead": "lead", "reviewer": "reviewer"} {
		if _, err := broker.As(name).Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: role}); err != nil {
			t.Fatal(err)
		}
	}

	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(working) }()
	tasks := []*pb.Message{}
	for _, payload := range []string{`{"name":"login"}`, `{"name":"store","question":"which hash?"}`, `7`} {
		tasks = append(tasks, &pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: "builder"}}, Payload: payload})
	}
	sent, err := broker.As("lead").Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: tasks})
	if err != nil {
		t.Fatal(err)
	}
	question := next(ctx, t, broker.As("reviewer"))
	_, err = broker.As("reviewer").Messages().Reply(ctx, &pb.ReplyRequest{
		Id: question.GetClaimId(), Ack: true, Message: &pb.Message{Subject: "argon2id"},
	})
	if err != nil {
		t.Fatal(err)
	}
	results := map[string]bool{}
	for range 2 {
		c := next(ctx, t, broker.As("lead"))
		results[c.GetMessage().GetSubject()] = true
		if _, err := broker.As("lead").Messages().AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{c.GetClaimId()}}); err != nil {
			t.Fatal(err)
		}
	}
	if !results["login is built"] || !results["store is built, argon2id"] {
		t.Errorf("results are %v", results)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for i, want := range []pb.DeliveryState{
		pb.DeliveryState_DELIVERY_STATE_ACKED, pb.DeliveryState_DELIVERY_STATE_ACKED, pb.DeliveryState_DELIVERY_STATE_DEAD,
	} {
		m, err := broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: sent.GetResults()[i].GetId()})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.GetDeliveries()[0].GetState(); got != want {
			t.Errorf("task %s is %v, want %v", tasks[i].GetPayload(), got, want)
		}
	}
}

// next claims one message.
func next(ctx context.Context, t *testing.T, agent *client.Client) *pb.ClaimedMessage {
	t.Helper()
	answer, err := agent.Messages().ClaimMessages(ctx, &pb.ClaimMessagesRequest{Wait: durationpb.New(patience)})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.GetClaims()) == 0 {
		t.Fatalf("nothing came: %v", answer)
	}
	return answer.GetClaims()[0]
}
