package messages

import (
	"io"
	"strconv"

	"github.com/spf13/cobra"

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
		channelSubscribe.Command(c), channelUnsubscribe.Command(c), channelGet.Command(c), channelList.Command(c),
		channelConfigure.Command(c))
}

var channelSubscribe = command.Spec[*pb.SubscribeChannelRequest, *pb.SubscribeChannelResponse]{
	Page: command.Page{
		Use:     "subscribe CHANNEL",
		Short:   "Receive the messages that are sent to a channel from now on",
		Example: `  brokerctl --agent builder-1 channel subscribe general`,
	},
	Args:    oneChannel,
	Options: []command.Option{command.RequestID},
	After: func(
		g *command.Given, _ *client.Client, _ *pb.SubscribeChannelRequest, a *pb.SubscribeChannelResponse,
	) (bool, error) {
		g.Warn(g.Cmd, a.GetWarnings())
		return false, nil
	},
	Text: func(_ *command.Given, w io.Writer, q *pb.SubscribeChannelRequest, a *pb.SubscribeChannelResponse) {
		prompt.Say(w, "%s %s", prompt.Either(a.GetChanged(), "subscribed to", "had already subscribed to"), q.GetChannel())
	},
}

// oneChannel is the argument of the commands about a channel.
var oneChannel = []command.Arg{{Field: "channel", Name: "the channel", Kind: words.Channel}}

var channelUnsubscribe = command.Spec[*pb.UnsubscribeChannelRequest, *pb.UnsubscribeChannelResponse]{
	Page: command.Page{
		Use:     "unsubscribe CHANNEL",
		Short:   "Stop receiving a channel's messages; delivered ones stay",
		Example: `  brokerctl --agent builder-1 channel unsubscribe general`,
	},
	Args:    oneChannel,
	Options: []command.Option{command.RequestID},
	Text: func(_ *command.Given, w io.Writer, q *pb.UnsubscribeChannelRequest, a *pb.UnsubscribeChannelResponse) {
		prompt.Say(w, "%s %s", prompt.Either(a.GetChanged(), "unsubscribed from", "was not subscribed to"), q.GetChannel())
	},
}

var channelList = command.Listing[*pb.ListChannelsRequest, *pb.ListChannelsResponse, *pb.Channel]{
	Page: command.Page{
		Use:     "list",
		Short:   "List channels with their subscribers",
		Example: "  brokerctl channel list --subscriber builder-1",
	},
	Items: (*pb.ListChannelsResponse).GetChannels,
	Options: []command.Option{
		{Field: "subscriber", Kind: words.Agent, Usage: "only channels that this agent subscribes to"},
	},
	View: func(*command.Given) output.View[*pb.Channel] { return ChannelView() },
}

// channelGet reads all channels: the API has no call for one.
var channelGet = command.Spec[*pb.ListChannelsRequest, *pb.Channel]{
	Page: command.Page{
		Use:     "get CHANNEL",
		Short:   "Show a channel: its settings and subscribers",
		Example: `  brokerctl channel get general`,
	},
	Narrow: true,
	Call: func(g *command.Given, broker *client.Client, q *pb.ListChannelsRequest) (*pb.Channel, error) {
		channels, err := channelList.All(g, broker, q)
		if err != nil {
			return nil, err
		}
		var known []string
		for _, ch := range channels {
			if ch.GetName() == g.Args[0] {
				return ch, nil
			}
			known = append(known, ch.GetName())
		}
		near := command.DidYouMean("", command.Near(g.Args[0], known))
		return nil, problem.Failf(problem.ExitNotFound, "there is no channel %q%s", g.Args[0], near)
	},
	Args: []command.Arg{{Name: "the channel", Kind: words.Channel}},
	Text: func(g *command.Given, w io.Writer, _ *pb.ListChannelsRequest, ch *pb.Channel) {
		subscribers := ch.GetSubscribers()
		l := g.NewLabels(w)
		l.Line("channel", ch.GetName())
		l.Line("settings", channelSettings(ch))
		l.Line("waiting", prompt.Count(ch.GetWaiting(), "message"))
		l.Line("subscribers", prompt.Either(len(subscribers) == 0, "none", prompt.Names(subscribers, len(subscribers))))
		l.Flush()
	},
}

// channelSettings says how long a channel's messages live.
func channelSettings(ch *pb.Channel) string {
	ttl := prompt.Either(ch.GetDefaultTtl().AsDuration() > 0,
		"messages expire after "+output.ShortOf(ch.GetDefaultTtl()), "messages do not expire by themselves")
	kept := "finished messages are kept as long as the session says"
	switch keep := ch.GetMessageRetention(); {
	case keep != nil && keep.AsDuration() == 0:
		kept = "finished messages are kept without limit"
	case keep != nil:
		kept = "finished messages are kept for " + output.ShortOf(keep)
	}
	return ttl + "; " + kept
}

var channelConfigure = command.Spec[*pb.ConfigureChannelRequest, *pb.ConfigureChannelResponse]{
	Page: command.Page{
		Use:     "configure CHANNEL",
		Short:   "Change a channel's settings (operators)",
		Example: `  brokerctl channel configure builds --default-ttl 30m`,
	},
	Args: oneChannel,
	Options: []command.Option{
		{Field: "default_ttl", Zero: true, Usage: "TTL of messages without one; 0: none"},
		{Field: "message_retention", Zero: true,
			Usage: "how long finished messages are kept; 0: without limit (new channels: as the session says)"},
		command.RequestID,
	},
	OneOf: []string{"default-ttl", "message-retention"},
	Shown: "channel",
	Text: func(_ *command.Given, w io.Writer, _ *pb.ConfigureChannelRequest, a *pb.ConfigureChannelResponse) {
		prompt.Say(w, "%s: %s", a.GetChannel().GetName(), channelSettings(a.GetChannel()))
	},
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
