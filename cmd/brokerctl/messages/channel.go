package messages

import (
	"context"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewChannelCommand returns the commands of brokerctl channel.
func NewChannelCommand(c *command.Caller) *cobra.Command {
	return command.Group("channel", "Subscribe to channels and configure them", `Channels are named topics. The first send, subscription or configuration creates
a channel.`, "  brokerctl channel list",
		newChannelSubscribeCommand(c), newChannelUnsubscribeCommand(c), newChannelGetCommand(c), newChannelListCommand(c), newChannelConfigureCommand(c))
}

func newChannelSubscribeCommand(c *command.Caller) *cobra.Command {
	var requestID string
	cmd := &cobra.Command{
		Use:               "subscribe CHANNEL",
		Short:             "Receive the messages that are sent to a channel from now on",
		Example:           `  brokerctl --agent builder-1 channel subscribe general`,
		Args:              command.Exactly("the channel"),
		ValidArgsFunction: c.CompleteArgs(false, words.ChannelNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Channels().SubscribeChannel(cmd.Context(), &pb.SubscribeChannelRequest{RequestId: requestID, Channel: args[0]})
			if err != nil {
				return err
			}
			c.Warn(cmd, answer.GetWarnings())
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "%s %s", prompt.Either(answer.GetChanged(), "subscribed to", "had already subscribed to"), args[0])
			})
		},
	}
	command.AddRequestID(cmd, &requestID)
	return cmd
}

func newChannelUnsubscribeCommand(c *command.Caller) *cobra.Command {
	var requestID string
	cmd := &cobra.Command{
		Use:               "unsubscribe CHANNEL",
		Short:             "Stop receiving a channel's messages; delivered ones stay",
		Example:           `  brokerctl --agent builder-1 channel unsubscribe general`,
		Args:              command.Exactly("the channel"),
		ValidArgsFunction: c.CompleteArgs(false, words.ChannelNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Channels().UnsubscribeChannel(cmd.Context(), &pb.UnsubscribeChannelRequest{RequestId: requestID, Channel: args[0]})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "%s %s", prompt.Either(answer.GetChanged(), "unsubscribed from", "was not subscribed to"), args[0])
			})
		},
	}
	command.AddRequestID(cmd, &requestID)
	return cmd
}

func newChannelListCommand(c *command.Caller) *cobra.Command {
	var subscriber string
	var limit int
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List channels with their subscribers",
		Example:           "  brokerctl channel list --subscriber builder-1",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			channels, err := listChannels(cmd.Context(), broker, subscriber, limit)
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, channels, ChannelView())
		},
	}
	cmd.Flags().StringVar(&subscriber, "subscriber", "", "only channels that this agent subscribes to")
	command.LimitVar(cmd.Flags(), &limit, 0)
	return cmd
}

// listChannels returns the channels that an agent subscribes to, or all if it is empty.
func listChannels(ctx context.Context, broker *client.Client, subscriber string, limit int) ([]*pb.Channel, error) {
	return command.Pages(limit, func(size int32, token string) ([]*pb.Channel, string, error) {
		page, err := broker.Channels().ListChannels(ctx, &pb.ListChannelsRequest{Subscriber: subscriber, PageSize: size, PageToken: token})
		return page.GetChannels(), page.GetNextPageToken(), err
	})
}

func newChannelGetCommand(c *command.Caller) *cobra.Command {
	return &cobra.Command{
		Use:               "get CHANNEL",
		Short:             "Show a channel: its settings and subscribers",
		Example:           `  brokerctl channel get general`,
		Args:              command.Exactly("the channel"),
		ValidArgsFunction: c.CompleteArgs(false, words.ChannelNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			channels, err := listChannels(cmd.Context(), broker, "", 0)
			if err != nil {
				return err
			}
			var known []string
			for _, ch := range channels {
				if ch.GetName() == args[0] {
					return c.Show(cmd, ch, func(w io.Writer) {
						subscribers := ch.GetSubscribers()
						l := c.NewLabels(w)
						l.Line("channel", ch.GetName())
						l.Line("settings", channelSettings(ch))
						l.Line("waiting", prompt.Count(ch.GetWaiting(), "message"))
						l.Line("subscribers", prompt.Either(len(subscribers) == 0, "none", prompt.Names(subscribers, len(subscribers))))
						l.Flush()
					})
				}
				known = append(known, ch.GetName())
			}
			return problem.Failf(problem.ExitNotFound, "there is no channel %q%s", args[0], command.DidYouMean("", command.Near(args[0], known)))
		},
	}
}

// channelSettings says how long a channel's messages live.
func channelSettings(ch *pb.Channel) string {
	ttl := "messages do not expire by themselves"
	if ch.GetDefaultTtl().AsDuration() > 0 {
		ttl = "messages expire after " + output.ShortOf(ch.GetDefaultTtl())
	}
	kept := "finished messages are kept as long as the session says"
	switch keep := ch.GetMessageRetention(); {
	case keep != nil && keep.AsDuration() == 0:
		kept = "finished messages are kept without limit"
	case keep != nil:
		kept = "finished messages are kept for " + output.ShortOf(keep)
	}
	return ttl + "; " + kept
}

func newChannelConfigureCommand(c *command.Caller) *cobra.Command {
	var ttl, keep time.Duration
	var requestID string
	cmd := &cobra.Command{
		Use:               "configure CHANNEL",
		Short:             "Change a channel's settings (operators)",
		Example:           `  brokerctl channel configure builds --default-ttl 30m`,
		Args:              command.Exactly("the channel"),
		ValidArgsFunction: c.CompleteArgs(false, words.ChannelNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.ConfigureChannelRequest{RequestId: requestID, Channel: args[0]}
			if d := command.IfSet(cmd, "default-ttl", ttl); d != nil {
				request.DefaultTtl = durationpb.New(*d)
			}
			if d := command.IfSet(cmd, "message-retention", keep); d != nil {
				request.MessageRetention = durationpb.New(*d)
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Channels().ConfigureChannel(cmd.Context(), request)
			if err != nil {
				return err
			}
			ch := answer.GetChannel()
			return c.Show(cmd, ch, func(w io.Writer) {
				prompt.Say(w, "%s: %s", ch.GetName(), channelSettings(ch))
			})
		},
	}
	command.DurationVar(cmd.Flags(), &ttl, "default-ttl", 0, "TTL of messages without one; 0: none")
	command.DurationVar(cmd.Flags(), &keep, "message-retention", 0, "how long finished messages are kept; 0: without limit (new channels: as the session says)")
	command.AddRequestID(cmd, &requestID)
	cmd.MarkFlagsOneRequired("default-ttl", "message-retention")
	return cmd
}

// ChannelView lists channels.
func ChannelView() output.View[*pb.Channel] {
	return output.View[*pb.Channel]{
		Columns: []table.Column{{Name: "CHANNEL", Min: 16}, {Name: "TTL", Rank: 1}, {Name: "WAITING"}, {Name: "SUBSCRIBERS", Min: 16}},
		Row: func(ch *pb.Channel) []string {
			subscribers := ch.GetSubscribers()
			return []string{ch.GetName(), output.ShortOf(ch.GetDefaultTtl()), strconv.FormatInt(ch.GetWaiting(), 10), prompt.Names(subscribers, len(subscribers))}
		},
		None: "no channels",
	}
}
