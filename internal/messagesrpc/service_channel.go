package messagesrpc

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/channels"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

// A ChannelService is the ChannelService of the API.
type ChannelService struct {
	pb.UnimplementedChannelServiceServer
	channels *channels.Registry
}

// NewChannelService returns the ChannelService of a registry.
func NewChannelService(registry *channels.Registry) *ChannelService {
	return &ChannelService{channels: registry}
}

// SubscribeChannel implements the RPC.
func (s *ChannelService) SubscribeChannel(
	ctx context.Context, r *pb.SubscribeChannelRequest,
) (*pb.SubscribeChannelResponse, error) {
	req, err := channelChange(ctx, "SubscribeChannel", r, r.Channel)
	if err != nil {
		return nil, err
	}
	c, name := identity.FromContext(ctx), mail.ChannelName(r.Channel)
	changed, revision, err := s.channels.Subscribe(ctx, c, req, name)
	if err != nil {
		return nil, err
	}
	warnings, err := s.channels.UnknownEvents(ctx, c, name)
	if err != nil {
		return nil, err
	}
	return &pb.SubscribeChannelResponse{Changed: changed, Revision: revision, Warnings: warnings}, nil
}

// UnsubscribeChannel implements the RPC.
func (s *ChannelService) UnsubscribeChannel(
	ctx context.Context, r *pb.UnsubscribeChannelRequest,
) (*pb.UnsubscribeChannelResponse, error) {
	req, err := channelChange(ctx, "UnsubscribeChannel", r, r.Channel)
	if err != nil {
		return nil, err
	}
	changed, revision, err := s.channels.Unsubscribe(ctx, identity.FromContext(ctx), req, mail.ChannelName(r.Channel))
	if err != nil {
		return nil, err
	}
	return &pb.UnsubscribeChannelResponse{Changed: changed, Revision: revision}, nil
}

// ListChannels implements the RPC.
func (s *ChannelService) ListChannels(
	ctx context.Context, r *pb.ListChannelsRequest,
) (*pb.ListChannelsResponse, error) {
	const list = "channels"
	after := ""
	if err := page.Parse(list, r.PageToken, &after); err != nil {
		return nil, err
	}
	found, more, revision, err := s.channels.List(ctx, identity.FromContext(ctx), r.Subscriber, after, page.Size(r.PageSize))
	if err != nil {
		return nil, err
	}
	out := &pb.ListChannelsResponse{Revision: revision}
	for i := range found {
		out.Channels = append(out.Channels, channel(&found[i]))
	}
	if more {
		out.NextPageToken = page.Token(list, found[len(found)-1].Name)
	}
	return out, nil
}

// ConfigureChannel implements the RPC.
func (s *ChannelService) ConfigureChannel(
	ctx context.Context, r *pb.ConfigureChannelRequest,
) (*pb.ConfigureChannelResponse, error) {
	req, err := channelChange(ctx, "ConfigureChannel", r, r.Channel)
	if err != nil {
		return nil, err
	}
	who, name := identity.FromContext(ctx), mail.ChannelName(r.Channel)
	ch, revision, err := s.channels.Configure(ctx, who, req, name, optional(r.DefaultTtl), optional(r.MessageRetention))
	if err != nil {
		return nil, err
	}
	return &pb.ConfigureChannelResponse{Channel: channel(&ch), Revision: revision}, nil
}

// optional returns a duration; nil if it is absent.
func optional(d *durationpb.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	value := d.AsDuration()
	return &value
}

// channelChange checks the fields that all changes of a channel have.
func channelChange(ctx context.Context, rpc string, r requested, name string) (idempotency.Request, error) {
	var c validate.Check
	if eventType, ok := strings.CutPrefix(name, mail.EventChannel); ok {
		ofEvents(&c, "channel", eventType)
	} else {
		c.NewName("channel", name)
	}
	if err := c.Err(); err != nil {
		return idempotency.Request{}, err
	}
	return idempotency.Of(ctx, rpc, r.GetRequestId(), r)
}

// ofEvents refuses a type whose events do not go to channels. A star means all types.
func ofEvents(c *validate.Check, field, eventType string) {
	switch {
	case eventType == "*":
	case !events.IsType(eventType):
		c.Fail(field, "%.60q is no type of events: event/TYPE or event/* is wanted", eventType)
	case events.Reserved(eventType) && !events.Announced(eventType):
		c.Fail(field, "the broker sends no events of type %s to channels: follow the event log for them", eventType)
	}
}

func channel(ch *channels.Channel) *pb.Channel {
	out := &pb.Channel{Name: ch.Name, Subscribers: ch.Subscribers, Waiting: ch.Waiting}
	if ch.DefaultTTL > 0 {
		out.DefaultTtl = durationpb.New(ch.DefaultTTL)
	}
	if ch.Kept != nil {
		out.MessageRetention = durationpb.New(*ch.Kept)
	}
	return out
}
