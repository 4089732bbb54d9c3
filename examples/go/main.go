// Command go is an agent of brokerd in Go: a builder that works on the tasks of its role, asks the reviewer when it
// has a question, and reports to whoever sent the task. It runs until it is interrupted.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run works until ctx ends. The environment says where the broker is: see client.FromEnvironment.
func run(ctx context.Context) error {
	broker, err := client.FromEnvironment(ctx)
	if err != nil {
		return err
	}
	defer broker.Close()
	request := &pb.RegisterAgentRequest{Role: "builder", Capabilities: []string{"go"}}
	member, err := broker.As("go-builder").Join(ctx, request, client.JoinOptions{})
	if err != nil {
		return err
	}
	defer member.Abandon()
	err = member.Do(ctx, func(me *client.Client) error {
		return me.Work(ctx, client.WorkOptions{Concurrency: 4}, builder{me}.handle)
	})
	if err != nil {
		return err
	}
	// The program ends well: the broker releases what the agent holds, and its mail waits for the next run.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return member.Close(ctx)
}

// builder is the agent.
type builder struct{ me *client.Client }

// handle works on one message. What it returns decides what becomes of the message.
func (b builder) handle(ctx context.Context, c *client.Claim) error {
	var task struct {
		Name     string `json:"name"`
		Question string `json:"question"`
	}
	if err := json.Unmarshal([]byte(c.Message.GetPayload()), &task); err != nil {
		return client.Fatal(err) // a dead letter at once: trying again cannot help
	}
	result := task.Name + " is built"
	if task.Question != "" {
		answer, err := b.ask(ctx, task.Question)
		if err != nil {
			return client.RetryAfter(err, time.Minute) // a failed attempt; the next one in a minute
		}
		result += ", " + answer
	}
	return report(ctx, c, result) // nil acknowledges
}

// ask waits for the reviewer's answer, for as long as a minute.
func (b builder) ask(ctx context.Context, question string) (string, error) {
	answer, err := b.me.Messages().Ask(ctx, &pb.AskRequest{
		Message: &pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: "reviewer"}}, Type: "question", Subject: question},
		Wait:    durationpb.New(time.Minute),
	})
	if err != nil {
		return "", err // NO_RESPONDERS at once if there is no reviewer
	}
	if answer.GetReply() == nil {
		return "", errors.New("the reviewer has not answered")
	}
	return answer.GetReply().GetSubject(), nil
}

// report answers the task and finishes it in one transaction.
func report(ctx context.Context, c *client.Claim, result string) error {
	return c.Reply(ctx, &pb.Message{Type: "task_result", Subject: result})
}
