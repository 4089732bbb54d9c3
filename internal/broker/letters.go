package broker

import (
	"fmt"

	"brokerd/internal/content"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

// normalPriority is that of a letter that names none.
const normalPriority = 5

// A Letter is a message that another feature sends in the name of an agent, as part of a change. Its
// recipients must act on it, so it is claimed and acknowledged as all mail. Full mailboxes take it.
type Letter struct {
	From      Agent    // the zero Agent sends as system
	To        []string // agents, with one message each; or
	Role      string   // one agent of this role
	Type      string
	Subject   string // clipped to one line
	Body      string
	Payload   string // JSON
	Task      string
	Thread    string // empty = the message starts a thread
	InReplyTo int64  // revision of a message; 0 = none
	Priority  int    // 0 = 5
	Artifacts []string
	About     int64 // for Withdraw: the revision of the work that the message is about; 0 = none
}

// Post sends a letter in the transaction of the change that it is part of. It returns the revision of
// the message, the first one if there are several. Errors: fault.NotFound if no agent matches the
// target, fault.Denied for a directive that the sender may not send.
func (b *Broker) Post(tx *store.Tx, session int64, l Letter) (revision int64, err error) {
	scope, err := b.dir.ByID(tx, session)
	if err != nil {
		return 0, fmt.Errorf("post: %w", err)
	}
	if l.From.Name == "" {
		l.From.Name = identity.System
	}
	s := &sending{
		Broker: b, tx: tx, actor: Actor{Agent: l.From, Session: scope},
		rooms: map[MailboxRef]*room{}, part: true, overfull: true,
	}
	l.Type = msgtype.Canonical(l.Type)
	for _, t := range l.targets() {
		d, err := l.draft(t)
		if err != nil {
			return 0, fmt.Errorf("post: %w", err)
		}
		out, err := s.send(d, 0, 0)
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = out.Revision
			if l.Thread == "" && l.InReplyTo == 0 { // the letters to all targets are one conversation
				l.Thread = out.ID.String()
			}
		}
		if l.About == 0 {
			continue
		}
		tx.Exec(updateAbout, l.About, out.Revision)
	}
	return revision, s.finish()
}

func (l *Letter) targets() []Target {
	if l.Role != "" {
		return []Target{{ToRole, l.Role}}
	}
	targets := make([]Target, len(l.To))
	for i, name := range l.To {
		targets[i] = Target{ToAgent, name}
	}
	return targets
}

// draft returns the letter as a message to one of its targets.
func (l *Letter) draft(t Target) (*Draft, error) {
	d := &Draft{
		Target: t, One: t.Kind == ToRole, Type: l.Type, Subject: clip(l.Subject, validate.MaxLine),
		Priority: l.Priority, Thread: l.Thread, Task: l.Task, Artifacts: l.Artifacts, PayloadSize: len(l.Payload),
		ReplyTo: Ref{Revision: l.InReplyTo},
	}
	switch {
	case IsDirective(l.Type):
		d.Priority = DirectivePriority
	case d.Priority == 0:
		d.Priority = normalPriority
	}
	says := content.Message{
		One: d.One, Type: d.Type, Priority: d.Priority, Subject: d.Subject, Body: l.Body, Payload: l.Payload,
		Task: l.Task, Thread: l.Thread, InReplyTo: l.InReplyTo, Artifacts: l.Artifacts,
	}
	if t.Kind == ToRole {
		says.Role = t.Name
	} else {
		says.Agent = t.Name
	}
	var err error
	d.Content, err = says.Marshal()
	return d, err
}
