// Command numbered sends numbered messages of an agent's producer to an agent, for scripts/upgrade-data.sh. brokerctl
// has no command for that.
//
//	numbered AGENT PRODUCER RECEIVER SUBJECT...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

func main() {
	if err := send(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "numbered:", err)
		os.Exit(1)
	}
}

func send(ctx context.Context, args []string) error {
	if len(args) < 4 {
		return errors.New("name the agent, its producer, the receiver and the subjects")
	}
	c, err := client.Dial(ctx, client.WithAgent(args[0]))
	if err != nil {
		return err
	}
	defer c.Close()
	sender := c.NewSender(client.SenderOptions{Producer: args[1]})
	defer sender.Close()
	for _, subject := range args[3:] {
		m := &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: args[2]}}, Subject: subject}
		if _, err := sender.Send(ctx, m); err != nil {
			return err
		}
	}
	return nil
}
