package diagnose

import (
	"fmt"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/msgtype"
	"brokerd/internal/nearest"
)

// channel explains which agents subscribe to a channel, when its last message came and how many
// deliveries of its messages wait. A channel of events needs no message and no subscription to exist.
func (e *explanation) channel() {
	name := mail.ChannelName(e.about.Name)
	ref := mail.ChannelRef(name)
	id, waiting := e.waitingIn(ref)
	eventType, ofEvents := strings.CutPrefix(name, mail.EventChannel)
	if id == 0 && !ofEvents {
		e.fail(e.noChannel(name))
		return
	}
	f := finding.Finding{Severity: finding.Info, Subject: "channel " + name}
	if subscribers := e.subscribers(id, name, ofEvents); len(subscribers) > 0 {
		f.Summary = finding.Names(subscribers) + verb(len(subscribers), " subscribes", " subscribe") + " to it"
	} else {
		f.Severity, f.Summary = finding.Warning, "no agent subscribes to it"
		if ofEvents && eventType != "*" {
			f.Summary += " or to event/*"
		}
		f.Calls = []calls.Call{calls.Do(&pb.ListChannelsRequest{})}
	}
	if hint := mail.MeantEvent(msgtype.NewSet(nil), eventType); ofEvents && hint != "" {
		f.Reasons = append(f.Reasons, hint)
	}
	e.traffic(&f, name)
	e.add(f)
	if id == 0 {
		return
	}
	if waiting > 0 {
		queue := finding.Finding{Severity: finding.Info, Subject: "mailbox " + ref.String(),
			Summary: wait(waiting) + " in it"}
		e.line(&queue, ref, id)
		e.add(queue)
	}
	e.deadLetters(id)
}

// noChannel returns the error for a channel that does not exist.
func (e *explanation) noChannel(name string) error {
	others, err := mail.SubscribedChannels(e.q, e.about.Session)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("there is no channel %q in this session", name)
	if hint := nearest.Hint(name, others); hint != "" {
		text += "; " + hint
	}
	return fault.Missing("channel", name, "%s", text)
}

// subscribers returns the agents that receive what is sent to a channel; for a channel of events with
// those that subscribe to all events.
func (e *explanation) subscribers(id int64, name string, ofEvents bool) (names []string) {
	var err error
	if ofEvents {
		names, err = mail.EventSubscribers(e.q, e.about.Session, name, "", mostSubscribers)
	} else {
		names, err = mail.SubscribersOf(e.q, id)
	}
	e.fail(err)
	return names
}

// traffic adds to the finding of a channel when its last message came, and how many deliveries wait.
func (e *explanation) traffic(f *finding.Finding, name string) {
	var last, waits int64
	var sender, kind string
	var at time.Time
	if !e.read(row{&last, &sender, &kind, &at}, selectLastOfChannel, mostOfChannel, e.about.Session, name) {
		f.Reasons = append(f.Reasons, "no message came: the broker keeps none, or it is older than the newest 10,000")
		return
	}
	e.read(row{&waits}, countWaitingOfChannel, mostOfChannel, e.about.Session, name, mostOfChannel)
	f.Reasons = append(f.Reasons,
		fmt.Sprintf("the last message, %d of type %s from %s, came at %s", last, kind, sender, e.about.When(at)),
		revision(waits)+
			verb(int(waits), " delivery of its newest messages waits", " deliveries of its newest messages wait"))
	f.Calls = append(f.Calls, calls.Do(&pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{Channels: []string{name}}, NewestFirst: true,
	}))
}

func verb(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}
