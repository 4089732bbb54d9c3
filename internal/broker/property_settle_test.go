package broker_test

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// named draws who settles, and how it names what: mostly claims of its own.
func (h *history) named(t *rapid.T) (agent string, names []naming) {
	if len(h.m.parcels) == 0 {
		t.Skip("nothing was sent")
	}
	agent = someAgents.Draw(t, "agent")
	among := h.m.parcels
	switch open := h.m.where(func(p *parcel) bool { return p.claimed() }); numbers(0, 9).Draw(t, "which") {
	case 7:
		if !h.batched || len(h.streams) == 0 { // which claims the agent has by then is known after the batch
			return agent, []naming{{}}
		}
	case 8:
	case 9:
		if own := h.m.where(func(p *parcel) bool { return p.holder == agent }); len(own) > 0 {
			among = own
		}
	default:
		if len(open) > 0 {
			agent = oneOf(open).Draw(t, "claimed").holder
			among = h.m.where(func(p *parcel) bool { return p.claimed() && p.holder == agent })
		}
	}
	for range numbers(1, 2).Draw(t, "items") {
		names = append(names, nameOf(t, oneOf(among).Draw(t, "delivery")))
	}
	return agent, names
}

// nameOf draws how a delivery is named: by its claim, by one before, by the message's id or revision.
func nameOf(t *rapid.T, p *parcel) naming {
	n := naming{text: strconv.FormatInt(p.message, 10), message: p.message}
	how := oneOf([]string{"claim", "claim", "claim", "earlier claim", "id", "revision"}).Draw(t, "named by")
	switch {
	case how == "id":
		n.text = p.id
	case how == "claim" && p.claims > 0:
		n.text, n.claim = p.claimID(), p.claims
	case how == "earlier claim" && p.claims > 1:
		n.claim = p.claims - 1
		n.text += "." + strconv.Itoa(n.claim)
	}
	return n
}

// texts is what a list of names is in a request.
func texts(names []naming) []string {
	if names[0].text == "" {
		return nil
	}
	var list []string
	for _, n := range names {
		list = append(list, n.text)
	}
	return list
}

// settle does to the model what was done to the broker, item by item, and checks what the broker answered: a
// refusal of all of it, or one result an item.
func (h *history) settle(t *rapid.T, agent string, names []naming, err error, got []string, do func(i int, n naming) (*parcel, string)) {
	reason := h.stranger(agent)
	var steps []func() string
	var want []string
	for i, n := range names {
		steps = append(steps, func() string {
			p, refused := do(i, n)
			if refused != "" {
				return refused
			}
			result := p.claimID()
			if result == "" {
				result = strconv.FormatInt(p.message, 10)
			}
			want = append(want, result)
			return ""
		})
	}
	if reason == "" {
		reason = h.m.all(steps...)
	}
	if refuses(t, err, codes.FailedPrecondition, reason) {
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("settled (-model +broker):\n%s", diff)
	}
}

func (h *history) ack(t *rapid.T) {
	agent, names := h.named(t)
	out, err := call(h, agent, pb.NewMessageServiceClient, pb.MessageServiceClient.AckMessages, &pb.AckMessagesRequest{Ids: texts(names)})
	h.settle(t, agent, names, err, out.GetAcked(), func(_ int, n naming) (*parcel, string) { return h.m.ack(agent, n) })
}

func (h *history) nack(t *rapid.T) {
	agent, names := h.named(t)
	delays := []time.Duration{0, 0, 3 * time.Second, 50 * time.Second}
	request := &pb.NackMessagesRequest{}
	for _, n := range names {
		nack := &pb.Nack{ClaimId: n.text, Error: "it does not compile", Fatal: numbers(0, 2).Draw(t, "fatal") == 0}
		if numbers(0, 3).Draw(t, "backoff") > 0 {
			nack.Delay = durationpb.New(oneOf(delays).Draw(t, "delay"))
		}
		request.Nacks = append(request.Nacks, nack)
	}
	out, err := call(h, agent, pb.NewMessageServiceClient, pb.MessageServiceClient.NackMessages, request)
	var got []string
	for _, o := range out.GetOutcomes() {
		got = append(got, o.ClaimId)
	}
	var parcels []*parcel
	h.settle(t, agent, names, err, got, func(i int, n naming) (*parcel, string) {
		p, refused := h.m.held(agent, n)
		if refused == "" {
			var delay *time.Duration
			if request.Nacks[i].Delay != nil {
				d := request.Nacks[i].Delay.AsDuration()
				delay = &d
			}
			h.m.fail(p, request.Nacks[i].Fatal, delay)
			h.m.strike(p)
			parcels = append(parcels, p)
		}
		return p, refused
	})
	for i, o := range out.GetOutcomes() {
		p := parcels[i]
		if o.State != h.m.state(p) || o.State == delayed && timeOf(o.DueAt).Sub(p.due).Abs() > p.spread {
			t.Fatalf("nacked %s: the broker says %v until %v; the model %v until %v", o.ClaimId, o.State, timeOf(o.DueAt), h.m.state(p), p.due)
		}
		if o.State == delayed {
			p.due, p.spread = timeOf(o.DueAt), 0 // how long exactly it waits is the broker's to say
		}
	}
}

func (h *history) extend(t *rapid.T) {
	agent, names := h.named(t)
	request := &pb.ExtendClaimsRequest{}
	var lasts []time.Duration
	for _, n := range names {
		d := someClaims.Draw(t, "claim_for")
		e := &pb.Extension{ClaimId: n.text}
		if d > 0 {
			e.ClaimFor = durationpb.New(d)
		}
		request.Extensions, lasts = append(request.Extensions, e), append(lasts, d)
	}
	out, err := call(h, agent, pb.NewMessageServiceClient, pb.MessageServiceClient.ExtendClaims, request)
	h.settle(t, agent, names, err, out.GetClaimIds(), func(i int, n naming) (*parcel, string) {
		p, refused := h.m.held(agent, n)
		if refused == "" {
			if lasts[i] > 0 {
				p.lasts = lasts[i]
			}
			if until := h.m.now.Add(p.lasts); h.stream(p) == nil || until.After(p.until) {
				p.until = until // a stream keeps a claim for the longer time
			}
		}
		return p, refused
	})
}

func (h *history) release(t *rapid.T) {
	agent, names := h.named(t)
	out, err := call(h, agent, pb.NewMessageServiceClient, pb.MessageServiceClient.ReleaseClaims, &pb.ReleaseClaimsRequest{Ids: texts(names)})
	h.settle(t, agent, names, err, out.GetReleased(), func(_ int, n naming) (*parcel, string) {
		p, refused := h.m.held(agent, n)
		if refused == "" {
			h.m.restore(p, time.Time{}, 0)
			h.m.released(p)
		}
		return p, refused
	})
}

func (h *history) cancel(t *rapid.T) {
	if len(h.m.parcels) == 0 {
		t.Skip("nothing was sent")
	}
	p := oneOf(h.m.parcels).Draw(t, "delivery")
	as := oneOf([]string{p.sender, p.sender, "", "ann"}).Draw(t, "caller")
	if as == "system" {
		as = ""
	}
	reason, code := h.stranger(as), codes.FailedPrecondition
	if reason == "" && as != "" && as != p.sender {
		reason, code = "NOT_THE_SENDER", codes.PermissionDenied
	}
	out, err := call(h, as, pb.NewMessageServiceClient, pb.MessageServiceClient.CancelMessage, &pb.CancelMessageRequest{Id: p.id, Reason: "not needed"})
	if refuses(t, err, code, reason) {
		return
	}
	if withdrawn, kept := h.m.cancel(p.message); int(out.Cancelled) != withdrawn || int(out.Kept) != kept {
		t.Fatalf("cancelled and kept: the broker says %d, %d; the model %d, %d", out.Cancelled, out.Kept, withdrawn, kept)
	}
}

func (h *history) redrive(t *rapid.T) {
	h.bury(t, oneOf([]string{"", "", "ann", "bob"}).Draw(t, "caller"), func(as string, ids []string, mailbox string) (int32, error) {
		out, err := call(h, as, pb.NewMessageServiceClient, pb.MessageServiceClient.RedriveDeadLetters,
			&pb.RedriveDeadLettersRequest{Ids: ids, Mailbox: mailbox})
		return out.GetRedriven(), err
	}, h.m.redrive)
}

func (h *history) purge(t *rapid.T) {
	h.bury(t, "", func(as string, ids []string, mailbox string) (int32, error) {
		out, err := call(h, as, pb.NewMessageServiceClient, pb.MessageServiceClient.PurgeDeadLetters,
			&pb.PurgeDeadLettersRequest{Ids: ids, Mailbox: mailbox})
		return out.GetPurged(), err
	}, func(p *parcel) { h.m.finish(p, cancelled) })
}

// bury does something to dead letters, chosen by message, by mailbox, or both.
func (h *history) bury(t *rapid.T, as string, rpc func(as string, ids []string, mailbox string) (int32, error), do func(*parcel)) {
	graves := h.m.where(func(p *parcel) bool { return p.state == dead })
	if len(graves) == 0 {
		t.Skip("there are no dead letters")
	}
	var mailbox string
	var ids []string
	var chosen []int64
	if rapid.Bool().Draw(t, "by message") {
		for range numbers(1, 2).Draw(t, "messages") {
			p := oneOf(graves).Draw(t, "dead letter")
			ids, chosen = append(ids, p.id), append(chosen, p.message)
		}
	}
	if len(ids) == 0 || numbers(0, 3).Draw(t, "and mailbox") == 0 {
		mailbox = oneOf(graves).Draw(t, "in the mailbox of").box
	}
	sees := func(p *parcel) bool {
		return (as == "" || slices.Contains(h.m.reachable(as), p.box)) && (mailbox == "" || p.box == mailbox)
	}
	n, err := rpc(as, ids, mailbox)
	found := h.m.where(func(p *parcel) bool {
		return p.state == dead && sees(p) && (len(ids) == 0 || slices.Contains(chosen, p.message))
	})
	reason, code := h.stranger(as), codes.FailedPrecondition
	switch {
	case reason != "":
	case as != "" && mailbox != "" && !slices.Contains(h.m.reachable(as), mailbox):
		reason, code = "MAILBOX_NOT_FOUND", codes.NotFound
	case slices.ContainsFunc(chosen, func(message int64) bool {
		return !slices.ContainsFunc(found, func(p *parcel) bool { return p.message == message })
	}):
		reason = "NOT_DEAD"
	}
	if refuses(t, err, code, reason) {
		return
	}
	if int(n) != len(found) {
		t.Fatalf("the broker says %d dead letters; the model %d", n, len(found))
	}
	for _, p := range found {
		do(p)
	}
}

// register registers an agent, one that has gone before others.
func (h *history) register(t *rapid.T) {
	name := someAgents.Draw(t, "agent")
	for _, gone := range []string{"ann", "bob", "cat"} {
		if !h.m.registered(gone) {
			name = gone
		}
	}
	h.closeStreams(t, func(s *openStream) bool { return s.agent == name })
	h.enrol(t, name, someRoles.Draw(t, "role"))
}

func (h *history) enrol(t *rapid.T, name, role string) {
	_, err := call(h, name, pb.NewAgentServiceClient, pb.AgentServiceClient.RegisterAgent, &pb.RegisterAgentRequest{Role: role, Replace: true, Lease: durationpb.New(apptest.LongLease)})
	refuses(t, err, codes.OK, "")
	a := h.m.agents[name]
	if a == nil {
		a = &member{channels: map[string]bool{}}
		h.m.agents[name] = a
	}
	a.role, a.registered = role, true
	h.m.mend(name)
}

func (h *history) deregister(t *rapid.T) {
	name := someAgents.Draw(t, "agent")
	h.closeStreams(t, func(s *openStream) bool { return s.agent == name })
	_, err := call(h, name, pb.NewAgentServiceClient, pb.AgentServiceClient.DeregisterAgent, &pb.DeregisterAgentRequest{Reason: "done"})
	if !refuses(t, err, codes.FailedPrecondition, h.stranger(name)) {
		h.m.deregister(name)
	}
}

func (h *history) subscribe(t *rapid.T) {
	name, channel := someAgents.Draw(t, "agent"), someChannels.Draw(t, "channel")
	out, err := call(h, name, pb.NewChannelServiceClient, pb.ChannelServiceClient.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: channel})
	if refuses(t, err, codes.FailedPrecondition, h.stranger(name)) {
		return
	}
	h.subscribed(t, name, channel, true, out.Changed)
}

func (h *history) unsubscribe(t *rapid.T) {
	name, channel := someAgents.Draw(t, "agent"), someChannels.Draw(t, "channel")
	out, err := call(h, name, pb.NewChannelServiceClient, pb.ChannelServiceClient.UnsubscribeChannel, &pb.UnsubscribeChannelRequest{Channel: channel})
	if refuses(t, err, codes.FailedPrecondition, h.stranger(name)) {
		return
	}
	h.subscribed(t, name, channel, false, out.Changed)
}

func (h *history) subscribed(t *rapid.T, name, channel string, on, changed bool) {
	channels := h.m.agents[name].channels
	if changed != (channels[channel] != on) {
		t.Fatal(fmt.Sprintf("channel %s of %s: changed is %v", channel, name, changed))
	}
	if on {
		channels[channel] = true
	} else {
		delete(channels, channel)
	}
}

func (h *history) configure(t *rapid.T) {
	ageings := slices.DeleteFunc([]time.Duration{5 * time.Minute, 0, 10 * time.Second}, func(d time.Duration) bool { return d == h.m.ageing })
	h.m.ageing = oneOf(ageings).Draw(t, "ageing")
	h.m.limit = oneOf([]int{0, 0, 3}).Draw(t, "mailbox_limit")
	h.m.breaker = oneOf([]int{0, 2, 3}).Draw(t, "breaker_failures")
	if h.streaming {
		h.m.limit, h.m.breaker = 0, 0 // what streams receive decides about both, in an order that no caller knows
	}
	h.rested = nil // the ranks change
	limit, failures, rate := int64(h.m.limit), int32(h.m.breaker), 0.0
	_, err := call(h, "", pb.NewSessionServiceClient, pb.SessionServiceClient.ConfigureSession,
		&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{
			Ageing: durationpb.New(h.m.ageing), MailboxLimit: &limit, Directors: &pb.Names{Names: []string{"red"}},
			BreakerFailures: &failures, BreakerTime: durationpb.New(breakerTime),
			SendRate: &rate, // a batch has more messages than an agent may send at once
		}})
	refuses(t, err, codes.OK, "")
	if h.m.breaker == 0 {
		for agent := range h.m.barriers {
			h.m.mend(agent)
		}
	}
}
