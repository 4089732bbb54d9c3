package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// completeTimeout bounds what a shell waits for; a broker that is away completes nothing.
const completeTimeout = time.Second

// words asks the broker for completions.
func (c *cli) words(cmd *cobra.Command, ask func(context.Context, *client.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	broker, err := c.connect(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	words, err := ask(ctx, broker)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

func agentNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.As("").Agents().ListAgents(ctx, &pb.ListAgentsRequest{PageSize: maxPage})
	var words []string
	for _, a := range page.GetAgents() {
		words = append(words, a.GetName())
	}
	return words, err
}

// completeAgents completes agents' names.
func (c *cli) completeAgents(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return c.words(cmd, agentNames)
}

// completeAgentArg completes the only argument, an agent's name.
func (c *cli) completeAgentArg(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.words(cmd, agentNames)
}

// completeReceiver completes the first argument of send.
func (c *cli) completeReceiver(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.words(cmd, func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.As("").Agents().ListAgents(ctx, &pb.ListAgentsRequest{PageSize: maxPage})
		if err != nil {
			return nil, err
		}
		words := []string{"everyone"}
		for _, a := range page.GetAgents() {
			words = append(words, a.GetName())
		}
		for _, r := range page.GetRoles() {
			if r.GetRole() != "" {
				words = append(words, "role:"+r.GetRole())
			}
		}
		channels, err := channelNames(ctx, broker)
		for _, name := range channels {
			words = append(words, "channel:"+name)
		}
		return words, err
	})
}

// completeResend completes the recipients of a message, by which resend chooses.
func (c *cli) completeResend(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.words(cmd, func(ctx context.Context, broker *client.Client) ([]string, error) {
		answer, err := broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: args[0]})
		var words []string
		for _, d := range answer.GetDeliveries() {
			words = append(words, d.GetMailbox())
		}
		return words, err
	})
}

func channelNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.As("").Channels().ListChannels(ctx, &pb.ListChannelsRequest{PageSize: maxPage})
	var words []string
	for _, ch := range page.GetChannels() {
		words = append(words, ch.GetName())
	}
	return words, err
}

// completeChannels completes the only argument, a channel's name.
func (c *cli) completeChannels(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.words(cmd, channelNames)
}

// completeSessions completes the only argument, a session's name.
func (c *cli) completeSessions(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.words(cmd, func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.Sessions().ListSessions(ctx, &pb.ListSessionsRequest{PageSize: maxPage})
		var words []string
		for _, s := range page.GetSessions() {
			words = append(words, s.GetName())
		}
		return words, err
	})
}

// completeTypes completes message types: those of the newest messages.
func (c *cli) completeTypes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return c.words(cmd, func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, NewestFirst: true})
		var words []string
		for _, item := range page.GetItems() {
			words = append(words, item.GetMessage().GetType())
		}
		slices.Sort(words)
		return slices.Compact(words), err
	})
}

// completeClaims completes ids of what the agent holds.
func (c *cli) completeClaims(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return c.words(cmd, func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
		var words []string
		for _, item := range page.GetItems() {
			if d := item.GetDelivery(); d.GetState() == pb.DeliveryState_DELIVERY_STATE_CLAIMED {
				words = append(words, d.GetClaimId())
			}
		}
		return words, err
	})
}
