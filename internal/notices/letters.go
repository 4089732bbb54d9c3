package notices

import (
	"fmt"

	"brokerd/internal/content"
	"brokerd/internal/directory"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/msgtype"
	"brokerd/internal/router"
	"brokerd/internal/store"
	"brokerd/internal/validate"
)

// normalPriority is that of a letter that names none.
const normalPriority = 5

// A Letter is a message that a feature sends in the name of an agent, as part of a change. Its recipients must act on
// it, so it is claimed and acknowledged as all mail. Full mailboxes take it.
type Letter struct {
	From      directory.Agent // the zero Agent sends as system
	To        []string        // agents, with one message each; or
	Role      string          // one agent of this role
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

// Post sends a letter in the transaction of the change that it is part of. It returns the revision of the message, the
// first one if there are several. Errors: fault.NotFound if no agent matches the target, fault.Denied for a directive
// that the sender may not send.
func (s *Sender) Post(tx *store.Tx, session int64, l Letter) (revision int64, err error) {
	scope, err := s.dir.ByID(tx, session)
	if err != nil {
		return 0, fmt.Errorf("post: %w", err)
	}
	if l.From.Name == "" {
		l.From.Name = identity.System
	}
	part := s.router.NewPartTx(tx, mail.Actor{Agent: l.From, Session: scope}, router.Part{Overfull: true})
	l.Type = msgtype.Canonical(l.Type)
	for _, t := range l.targets() {
		d, err := l.draft(t)
		if err != nil {
			return 0, fmt.Errorf("post: %w", err)
		}
		out, err := part.Send(d)
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = out.Revision
			if l.Thread == "" && l.InReplyTo == 0 { // the letters to all targets are one conversation
				l.Thread = out.ID.String()
			}
		}
		if l.About != 0 {
			tx.Exec(updateAbout, l.About, out.Revision)
		}
	}
	return revision, part.Finish()
}

// targets returns the target of each message.
func (l *Letter) targets() []mail.Target {
	if l.Role != "" {
		return []mail.Target{{Kind: mail.ToRole, Name: l.Role}}
	}
	targets := make([]mail.Target, len(l.To))
	for i, name := range l.To {
		targets[i] = mail.Target{Kind: mail.ToAgent, Name: name}
	}
	return targets
}

// draft returns the letter as a message to one of its targets.
func (l *Letter) draft(t mail.Target) (*mail.Draft, error) {
	d := &mail.Draft{
		Target: t, One: t.Kind == mail.ToRole, Type: l.Type,
		Subject: content.Clip(l.Subject, validate.MaxLine), Priority: l.Priority,
		Thread: l.Thread, Task: l.Task, Artifacts: l.Artifacts, PayloadSize: len(l.Payload),
		ReplyTo: msgid.Ref{Revision: l.InReplyTo},
	}
	switch {
	case mail.IsDirective(l.Type):
		d.Priority = mail.DirectivePriority
	case d.Priority == 0:
		d.Priority = normalPriority
	}
	says := content.Message{
		One: d.One, Type: d.Type, Priority: d.Priority, Subject: d.Subject, Body: l.Body, Payload: l.Payload,
		Task: l.Task, Thread: l.Thread, InReplyTo: l.InReplyTo, Artifacts: l.Artifacts,
	}
	if t.Kind == mail.ToRole {
		says.Role = t.Name
	} else {
		says.Agent = t.Name
	}
	var err error
	d.Content, err = says.Marshal()
	return d, err
}
