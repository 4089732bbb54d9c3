package broker_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func (a *agent) channelList(r *pb.ListChannelsRequest) []*pb.Channel {
	a.Helper()
	return apptest.Must(a, a.ListChannels, r).Channels
}

func (a *agent) unsubscribe(channel string) bool {
	a.Helper()
	return apptest.Must(a, a.UnsubscribeChannel, &pb.UnsubscribeChannelRequest{Channel: channel}).Changed
}

func TestChannel_SubscriberGetsWhatIsSentFromThenOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.send(toChannel("news", subject("before")))
	out := apptest.Must(t, a.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: "news"})
	want(t, "changed", out.Changed, true)
	sent := lead.send(toChannel("news", subject("between")))
	if sent.Revision <= out.Revision {
		t.Errorf("message %d, subscription %d", sent.Revision, out.Revision)
	}
	out = apptest.Must(t, a.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: "news"})
	want(t, "twice", out.Changed, false)
	want(t, "unsubscribed", a.unsubscribe("news"), true)
	lead.send(toChannel("news", subject("after")))
	want(t, "twice", a.unsubscribe("news"), false)
	wantList(t, "what has arrived stays", subjectsOf(a.claim(10)), "between")
}

func TestChannel_UnsubscribingMakesNoChannel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	want(t, "changed", a.unsubscribe("nothing"), false)
	want(t, "channels", len(a.channelList(&pb.ListChannelsRequest{})), 0)
}

func TestChannel_ListsBySubscriberAndInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.agent("a", ""), w.agent("b", "")
	b.subscribe("general", "news")
	a.subscribe("news")
	w.operator().sendAll(toChannel("queue", one), toChannel("queue", one), toChannel("urgent"))
	wanted := []*pb.Channel{
		{Name: "general", DefaultTtl: durationpb.New(time.Hour), Subscribers: []string{"b"}},
		{Name: "news", Subscribers: []string{"a", "b"}},
		{Name: "queue", Waiting: 2},
		{Name: "urgent", DefaultTtl: durationpb.New(5 * time.Minute)},
	}
	if diff := cmp.Diff(wanted, a.channelList(&pb.ListChannelsRequest{}), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(wanted[1:2], a.channelList(&pb.ListChannelsRequest{Subscriber: "a"}), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	want(t, "of nobody", len(a.channelList(&pb.ListChannelsRequest{Subscriber: "nobody"})), 0)
	var names []string
	for r := (&pb.ListChannelsRequest{PageSize: 3}); ; {
		out := apptest.Must(t, a.ListChannels, r)
		for _, c := range out.Channels {
			names = append(names, c.Name)
		}
		if r.PageToken = out.NextPageToken; r.PageToken == "" {
			break
		}
	}
	wantList(t, "in pages", names, "general", "news", "queue", "urgent")
}

func TestChannel_ConfigureIsForOperatorsAndKeepsWhatIsAbsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", ""), w.operator()
	a.subscribe("general")
	_, err := a.ConfigureChannel(a.Ctx, &pb.ConfigureChannelRequest{Channel: "general", DefaultTtl: durationpb.New(0)})
	apptest.Refused(t, err, codes.PermissionDenied, "OPERATOR_ONLY")
	for _, c := range []struct{ set, want *durationpb.Duration }{
		{nil, durationpb.New(time.Hour)},
		{durationpb.New(time.Minute), durationpb.New(time.Minute)},
		{nil, durationpb.New(time.Minute)},
		{durationpb.New(0), nil},
	} {
		out := apptest.Must(t, o.ConfigureChannel,
			&pb.ConfigureChannelRequest{Channel: "general", DefaultTtl: c.set})
		wanted := &pb.Channel{Name: "general", DefaultTtl: c.want, Subscribers: []string{"a"}}
		if diff := cmp.Diff(wanted, out.Channel, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	}
	apptest.Must(t, o.ConfigureChannel, &pb.ConfigureChannelRequest{Channel: "fresh"})
	want(t, "it is there", len(o.channelList(&pb.ListChannelsRequest{})), 2)
}

func TestChannel_OneGoesToOneSubscriber(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, b := w.agent("lead", ""), w.agent("a", ""), w.agent("b", "")
	lead.send(toChannel("work", one, subject("1")))
	want(t, "not subscribed", len(a.claim(1)), 0)
	a.subscribe("work")
	b.subscribe("work")
	got := a.claim1()
	want(t, "mailbox", got.Mailbox, "channel:work")
	want(t, "the other", len(b.claim(1)), 0)
}

func TestChannel_OpenClaimStreamFollowsSubscriptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a := w.agent("lead", ""), w.agent("a", "")
	lead.send(toChannel("work", one, subject("before")))
	c := a.taker(&pb.ClaimOpen{MaxInFlight: 2})
	chosen := a.taker(&pb.ClaimOpen{MaxInFlight: 10, Consumer: "chosen", Mailboxes: []string{"a"}})
	c.idle()
	a.subscribe("work")
	wantList(t, "what waits", subjectsOf(c.take(1)), "before")
	lead.sendAll(toChannel("work", one, subject("1")), toChannel("work", one, subject("2")))
	got := c.take(1)
	wantList(t, "what comes", subjectsOf(got), "1")
	chosen.idle() // there is one left that it could have
	c.ack(got...)
	got = c.take(1)
	wantList(t, "what comes", subjectsOf(got), "2")
	c.ack(got...)
	a.unsubscribe("work")
	lead.send(toChannel("work", one))
	c.idle()
	chosen.idle()
	a.Register("builder")
	lead.send(toRole("builder", subject("role")))
	wantList(t, "a new role too", subjectsOf(c.take(1)), "role")
}

func TestChannel_RequestIDDoesNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", ""), w.operator()
	sub := &pb.SubscribeChannelRequest{RequestId: newUUID(), Channel: "news"}
	one := apptest.Must(t, a.SubscribeChannel, sub)
	a.unsubscribe("news")
	two := apptest.Must(t, a.SubscribeChannel, sub)
	want(t, "revision", two.Revision, one.Revision)
	want(t, "changed", two.Changed, true)
	want(t, "subscriptions", len(a.channelList(&pb.ListChannelsRequest{Subscriber: "a"})), 0)
	sub.Channel = "other"
	apptest.Refuses(t, a.SubscribeChannel, sub, codes.AlreadyExists, "REQUEST_ID_REUSED")
	conf := &pb.ConfigureChannelRequest{RequestId: newUUID(), Channel: "news", DefaultTtl: durationpb.New(time.Minute)}
	apptest.Must(t, o.ConfigureChannel, conf)
	out := apptest.Must(t, o.ConfigureChannel, conf)
	want(t, "ttl", out.Channel.DefaultTtl.AsDuration(), time.Minute)
}

func TestChannel_DefaultTTLAppliesToALabelToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", ""), w.operator()
	apptest.Must(t, o.ConfigureChannel,
		&pb.ConfigureChannelRequest{Channel: "news", DefaultTtl: durationpb.New(time.Minute)})
	labelled := func(channel string) change { return func(m *pb.Message) { m.Channel = channel } }
	for channel, ttl := range map[string]time.Duration{"general": time.Hour, "urgent": 5 * time.Minute, "news": time.Minute} {
		m := a.get(o.send(to("a", labelled(channel))).Id).Message
		want(t, "expiry with the label "+channel, m.ExpiresAt.AsTime(), w.now(ttl).AsTime())
	}
	want(t, "its own ttl", a.get(o.send(to("a", labelled("news"), ttl(time.Hour))).Id).Message.ExpiresAt.AsTime(), w.now(time.Hour).AsTime())
	if m := a.get(o.send(to("a", labelled("other"))).Id).Message; m.ExpiresAt != nil {
		t.Errorf("a label without a default TTL: %v", m)
	}
}

func TestChannel_AnAgentSubscribesToAThousand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for i := range 1000 {
		a.subscribe("c" + strconv.Itoa(i))
	}
	_, err := a.SubscribeChannel(a.Ctx, &pb.SubscribeChannelRequest{Channel: "one-too-many"})
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_SUBSCRIPTIONS")
	a.subscribe("c7") // again is fine
	a.unsubscribe("c7")
	a.subscribe("one-too-many")
}
