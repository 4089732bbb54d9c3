package broker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

const (
	nonsense = "no such\tthing"
	year     = 365 * 24 * time.Hour
)

// The test of package rules tries the bounds of single fields.
func TestInput_EveryFieldOfAMessageIsChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for _, c := range []struct {
		field string
		spoil change
	}{
		{"id", func(m *pb.Message) { m.Id = newUUID() }},
		{"revision", func(m *pb.Message) { m.Revision = 1 }},
		{"sender", func(m *pb.Message) { m.Sender = "a" }},
		{"sender_role", func(m *pb.Message) { m.SenderRole = "a" }},
		{"created_at", func(m *pb.Message) { m.CreatedAt = w.now(0) }},
		{"expires_at", func(m *pb.Message) { m.ExpiresAt = w.now(0) }},
		{"type_as_sent", func(m *pb.Message) { m.TypeAsSent = "Message" }},
		{"target", func(m *pb.Message) { m.Target = nil }},
		{"target", func(m *pb.Message) { m.Target = &pb.Target{} }},
		{"target.agent", func(m *pb.Message) { m.Target = to("a\x00b").Target }},
		{"target.channel", func(m *pb.Message) { m.Target = toChannel("event/x").Target }},
		{"target.everyone", func(m *pb.Message) { m.Target = &pb.Target{To: &pb.Target_Everyone{}} }},
		{"reach", one},
		{"reach", func(m *pb.Message) { m.Target, m.Reach = toEveryone().Target, pb.Reach_REACH_ONE }},
		{"version", func(m *pb.Message) { m.Version = "2.0" }},
		{"version", func(m *pb.Message) { m.Version = "1" }},
		{"version", func(m *pb.Message) { m.Version = "1.0.0" }},
		{"version", func(m *pb.Message) { m.Version = "1.01" }},
		{"channel", func(m *pb.Message) { m.Target, m.Channel = toChannel("c").Target, "d" }},
		{"in_reply_to", func(m *pb.Message) { m.InReplyTo = nonsense }},
		{"in_reply_to", func(m *pb.Message) { m.InReplyTo = "4711.2" }},
		{"in_reply_to", func(m *pb.Message) { m.InReplyTo = "-1" }},
		{`labels["k"]`, func(m *pb.Message) { m.Labels = map[string]string{"k": strings.Repeat("x", 257)} }},
		{"not_before", due(w.now(year + time.Second))},
		{"response_deadline", deadline(w.now(0))},
		{"response_deadline", deadline(w.now(year + time.Second))},
		{"response_deadline", func(m *pb.Message) { m.ResponseDeadline = w.now(time.Hour) }},
	} {
		t.Run(c.field, func(t *testing.T) {
			good, bad := to("a"), to("a", c.spoil)
			_, err := a.SendMessages(a.Ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{good, bad}})
			apptest.Invalid(t, err, "messages[1]."+c.field)
			s := a.sender()
			got := s.exchange(&pb.SendRequest{Messages: []*pb.Message{good, bad}})
			want(t, "the good one", got[0].Error, nil)
			want(t, "code", codes.Code(got[1].GetError().GetCode()), codes.InvalidArgument)
			want(t, "field", got[1].GetError().GetField(), "messages[1]."+c.field)
			s.end()
		})
	}
}

func TestInput_LimitsAreInclusive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	full := to("a", subject(strings.Repeat("s", 512)), kind(strings.Repeat("k", 128)), key(strings.Repeat("o", 128)),
		ttl(year), due(w.now(year)), attempts(100), priority(10))
	full.Body, full.Payload = strings.Repeat("b", 256<<10), `"`+strings.Repeat("p", 256<<10-2)+`"`
	full.Labels = map[string]string{}
	for i := range 64 {
		full.Labels[fmt.Sprintf("%0256d", i)] = strings.Repeat("v", 256)
	}
	for range 100 {
		full.Files = append(full.Files, &pb.FileReference{Path: strings.Repeat("f", 1024), Line: 1})
	}
	a.send(full)
	a.send(to("a", ttl(time.Millisecond)))
	apptest.Must(t, a.SendMessages, &pb.SendMessagesRequest{Messages: make1001()[:1000]})
}

func TestInput_MessageBeyondOneMebibyteIsExhausted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	big := to("a", func(m *pb.Message) {
		for range 1000 {
			m.Artifacts = append(m.Artifacts, strings.Repeat("x", 1024))
		}
		m.Body = strings.Repeat("x", 100<<10)
	})
	apptest.Refused(t, a.refused(big), codes.ResourceExhausted, "MESSAGE_TOO_LARGE")
	s := a.sender()
	got := s.exchange(&pb.SendRequest{Messages: []*pb.Message{big, to("a")}})
	want(t, "on a stream", got[0].GetError().GetReason(), "MESSAGE_TOO_LARGE")
	want(t, "the next", got[1].Error, nil)
	s.close()
	huge := to("a", func(m *pb.Message) { m.Body = strings.Repeat("x", 5<<20) })
	want(t, "beyond a frame", status.Code(a.refused(huge)), codes.ResourceExhausted)
}

// A bad is a request that is refused, with the field it is refused for.
type bad struct {
	field string
	err   error
}

func TestInput_EveryCallNamesTheField(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, o := w.agent("a", "builder"), w.operator()
	ctx, id := a.Ctx, newUUID()
	var all []bad
	add := func(rpc string, err error, field string) { all = append(all, bad{rpc + " " + field, err}) }
	send := func(r *pb.SendMessagesRequest, field string) {
		add("SendMessages", drop(a.SendMessages(ctx, r)), field)
	}
	send(&pb.SendMessagesRequest{RequestId: nonsense, Messages: []*pb.Message{to("a")}}, "request_id")

	receive := func(r *pb.ReceiveRequest, field string) {
		stream, err := a.Receive(ctx, r)
		apptest.NoError(t, err)
		add("Receive", drop(stream.Recv()), field)
	}
	receive(&pb.ReceiveRequest{AfterRevision: 1, Cursor: "c"}, "after_revision")

	list := func(r *pb.ListMessagesRequest, field string) {
		add("ListMessages", drop(a.ListMessages(ctx, r)), field)
	}
	list(&pb.ListMessagesRequest{PageToken: nonsense}, "page_token")
	unknown := &pb.MessageFilter{Channels: []string{nonsense}}
	receive(&pb.ReceiveRequest{Filter: unknown}, "filter.channels[0]")
	list(&pb.ListMessagesRequest{Filter: unknown}, "filter.channels[0]")

	open := func(o *pb.ClaimOpen, field string) {
		stream, err := a.Claim(ctx)
		apptest.NoError(t, err)
		apptest.NoError(t, stream.Send(&pb.ClaimRequest{Open: o}))
		add("Claim", drop(stream.Recv()), "open."+field)
	}
	take := func(r *pb.ClaimMessagesRequest, field string) {
		add("ClaimMessages", drop(a.ClaimMessages(ctx, r)), field)
	}
	open(&pb.ClaimOpen{Mailboxes: []string{"a", "role:"}}, "mailboxes[1]")
	take(&pb.ClaimMessagesRequest{Mailboxes: []string{"channel: "}}, "mailboxes[0]")

	ack := func(r *pb.AckMessagesRequest, field string) { add("AckMessages", drop(a.AckMessages(ctx, r)), field) }
	ack(&pb.AckMessagesRequest{RequestId: nonsense}, "request_id")
	ack(&pb.AckMessagesRequest{Ids: []string{id, nonsense}}, "ids[1]")
	ack(&pb.AckMessagesRequest{Ids: []string{"0"}}, "ids[0]")
	ack(&pb.AckMessagesRequest{Ids: []string{"1.0"}}, "ids[0]")
	ack(&pb.AckMessagesRequest{Ids: []string{""}}, "ids[0]")
	release := func(r *pb.ReleaseClaimsRequest, field string) {
		add("ReleaseClaims", drop(a.ReleaseClaims(ctx, r)), field)
	}
	release(&pb.ReleaseClaimsRequest{RequestId: nonsense}, "request_id")
	release(&pb.ReleaseClaimsRequest{Ids: []string{nonsense}}, "ids[0]")
	nack := func(field string, n ...*pb.Nack) {
		add("NackMessages", drop(a.NackMessages(ctx, &pb.NackMessagesRequest{Nacks: n})), field)
	}
	nack("nacks[0].claim_id", &pb.Nack{ClaimId: nonsense})
	nack("nacks[1].claim_id", &pb.Nack{ClaimId: "1.1"}, &pb.Nack{})
	add("NackMessages", drop(a.NackMessages(ctx, &pb.NackMessagesRequest{RequestId: nonsense, Nacks: []*pb.Nack{{}}})), "request_id")
	extend := func(field string, e ...*pb.Extension) {
		add("ExtendClaims", drop(a.ExtendClaims(ctx, &pb.ExtendClaimsRequest{Extensions: e})), field)
	}
	extend("extensions[0].claim_id", &pb.Extension{ClaimId: nonsense})
	extend("extensions[1].claim_id", &pb.Extension{ClaimId: id}, &pb.Extension{})
	add("ExtendClaims", drop(a.ExtendClaims(ctx, &pb.ExtendClaimsRequest{RequestId: nonsense, Extensions: []*pb.Extension{{}}})), "request_id")

	for _, ref := range []string{"", nonsense, "-1", "00", "1.2.3"} {
		add("GetMessage", drop(a.GetMessage(ctx, &pb.GetMessageRequest{Id: ref})), "id")
		add("CancelMessage", drop(a.CancelMessage(ctx, &pb.CancelMessageRequest{Id: ref})), "id")
	}
	add("CancelMessage", drop(a.CancelMessage(ctx, &pb.CancelMessageRequest{Id: "1.1"})), "id")
	add("CancelMessage", drop(a.CancelMessage(ctx, &pb.CancelMessageRequest{Id: id, RequestId: nonsense})), "request_id")

	add("ListDeadLetters", drop(a.ListDeadLetters(ctx, &pb.ListDeadLettersRequest{Mailbox: nonsense})), "mailbox")
	add("ListDeadLetters", drop(a.ListDeadLetters(ctx, &pb.ListDeadLettersRequest{PageToken: nonsense})), "page_token")
	choose := func(field string, ids []string, mailbox, request string) {
		add("RedriveDeadLetters", drop(a.RedriveDeadLetters(ctx,
			&pb.RedriveDeadLettersRequest{Ids: ids, Mailbox: mailbox, RequestId: request})), field)
		add("PurgeDeadLetters", drop(o.PurgeDeadLetters(ctx,
			&pb.PurgeDeadLettersRequest{Ids: ids, Mailbox: mailbox, RequestId: request})), field)
	}
	choose("ids", nil, "", "")
	choose("ids[0]", []string{"1.1"}, "", "")
	choose("mailbox", nil, nonsense, "")
	choose("request_id", []string{id}, "", nonsense)

	for _, name := range []string{"", nonsense, "event/1", "all", "system", strings.Repeat("x", 129)} {
		add("SubscribeChannel", drop(a.SubscribeChannel(ctx, &pb.SubscribeChannelRequest{Channel: name})), "channel")
		add("UnsubscribeChannel", drop(a.UnsubscribeChannel(ctx, &pb.UnsubscribeChannelRequest{Channel: name})), "channel")
		add("ConfigureChannel", drop(o.ConfigureChannel(ctx, &pb.ConfigureChannelRequest{Channel: name})), "channel")
	}
	add("SubscribeChannel", drop(a.SubscribeChannel(ctx, &pb.SubscribeChannelRequest{Channel: "c", RequestId: nonsense})), "request_id")
	add("UnsubscribeChannel", drop(a.UnsubscribeChannel(ctx, &pb.UnsubscribeChannelRequest{Channel: "c", RequestId: nonsense})), "request_id")
	configure := func(r *pb.ConfigureChannelRequest, field string) {
		r.Channel = "c"
		add("ConfigureChannel", drop(o.ConfigureChannel(ctx, r)), field)
	}
	configure(&pb.ConfigureChannelRequest{RequestId: nonsense}, "request_id")
	channels := func(r *pb.ListChannelsRequest, field string) {
		add("ListChannels", drop(a.ListChannels(ctx, r)), field)
	}
	channels(&pb.ListChannelsRequest{PageToken: nonsense}, "page_token")

	for _, c := range all {
		_, field, _ := strings.Cut(c.field, " ")
		t.Run(c.field, func(t *testing.T) { apptest.Invalid(t, c.err, field) })
	}
	want(t, "channels", len(a.channelList(&pb.ListChannelsRequest{})), 0)
}

func TestInput_AllFaultsOfARequestAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	err := w.agent("a", "").refused(&pb.Message{Target: to("-").Target, Priority: 11, Subject: "\n"})
	fields := testkit.Fields(err)
	slices.Sort(fields)
	wantList(t, "fields", fields, "messages[0].priority", "messages[0].subject", "messages[0].target.agent")
}

func TestInput_ClaimFrameBeyondTheLimitsEndsTheStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.agent("a", "").taker(&pb.ClaimOpen{})
	c.put(&pb.ClaimRequest{Acks: slices.Repeat([]string{"1.1"}, 501), Releases: slices.Repeat([]string{"1.1"}, 500)})
	apptest.Invalid(t, c.ended(), "settlements")
}

func TestInput_PageTokenOfAnotherListIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.sendAll(to("a"), to("a"))
	token := a.list(&pb.ListMessagesRequest{PageSize: 1}).NextPageToken
	_, err := a.ListDeadLetters(context.WithoutCancel(a.Ctx), &pb.ListDeadLettersRequest{PageToken: token})
	apptest.Invalid(t, err, "page_token")
}
