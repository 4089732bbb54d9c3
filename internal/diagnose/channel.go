package diagnose

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/msgtype"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
)

// mostOfChannel is how many of the newest messages of the broker, and how many deliveries, one answer
// about a channel reads.
const mostOfChannel = 10_000

// mostSubscribers is how many agents that subscribe to a channel of events one answer reads.
const mostSubscribers = 1000

// ofChannel explains which agents subscribe to a channel, when its last message came and how many
// deliveries of its messages wait. A channel of events needs no message and no subscription to exist.
func (e *explanation) ofChannel() error {
	name := broker.ChannelName(e.about.Name)
	ref := broker.MailboxRef{Kind: broker.ChannelMailbox, Name: name}
	id, waiting, err := e.waitingIn(ref)
	if err != nil {
		return err
	}
	eventType, ofEvents := strings.CutPrefix(name, broker.EventChannel)
	if id == 0 && !ofEvents {
		others, err := broker.SubscribedChannels(e.q, e.about.Session)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("there is no channel %q in this session", name)
		if hint := nearest.Hint(name, others); hint != "" {
			text += "; " + hint
		}
		return fault.Missing("channel", name, "%s", text)
	}
	f := finding.Finding{Severity: finding.Info, Subject: "channel " + name}
	subscribers, err := e.subscribersTo(id, name, ofEvents)
	switch {
	case err != nil:
		return err
	case len(subscribers) > 0:
		f.Summary = finding.Names(subscribers) + verb(len(subscribers), " subscribes", " subscribe") + " to it"
	default:
		f.Severity, f.Summary = finding.Warning, "no agent subscribes to it"
		if ofEvents && eventType != "*" {
			f.Summary += " or to event/*"
		}
		f.Commands = []finding.Command{{"channel", "list"}}
	}
	if hint := broker.MeantEvent(msgtype.NewSet(nil), eventType); ofEvents && hint != "" {
		f.Reasons = append(f.Reasons, hint)
	}
	if err := e.traffic(&f, name); err != nil {
		return err
	}
	e.add(f)
	if id == 0 {
		return nil
	}
	if waiting > 0 {
		queue := finding.Finding{Severity: finding.Info, Subject: "mailbox " + ref.String(), Summary: wait(waiting) + " in it"}
		if err := e.line(&queue, ref, id); err != nil {
			return err
		}
		e.add(queue)
	}
	return e.deadBoxes(id)
}

// subscribersTo returns the agents that receive what is sent to a channel; for a channel of events with
// those that subscribe to all events.
func (e *explanation) subscribersTo(id int64, name string, ofEvents bool) ([]string, error) {
	if ofEvents {
		return broker.EventSubscribers(e.q, e.about.Session, name, "", mostSubscribers)
	}
	return broker.SubscribersOf(e.q, id)
}

// traffic adds to the finding of a channel when its last message came, and how many deliveries wait.
func (e *explanation) traffic(f *finding.Finding, name string) error {
	var last int64
	var sender, kind string
	var at time.Time
	err := e.q.QueryRow(selectLastOfChannel, mostOfChannel, e.about.Session, name).Scan(&last, &sender, &kind, &at)
	if errors.Is(err, store.ErrNoRows) {
		f.Reasons = append(f.Reasons, "no message came: the broker keeps none, or it is older than the newest 10,000")
		return nil
	}
	if err != nil {
		return err
	}
	f.Reasons = append(f.Reasons, "the last message, "+strconv.FormatInt(last, 10)+" of type "+kind+" from "+sender+
		", came at "+e.about.When(at))
	var waits int64
	if err := e.q.QueryRow(countWaitingOfChannel, mostOfChannel, e.about.Session, name, mostOfChannel).Scan(&waits); err != nil {
		return err
	}
	f.Reasons = append(f.Reasons, strconv.FormatInt(waits, 10)+
		verb(int(waits), " delivery of its newest messages waits", " deliveries of its newest messages wait"))
	f.Commands = append(f.Commands, finding.Command{"message", "list", "--channel", name, "--box", "all", "--newest"})
	return nil
}

func verb(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}
