package notices

import (
	"cmp"
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
	"brokerd/internal/work"
)

// normalPriority is that of a letter that names none.
const normalPriority = 5

// Post sends a letter in the transaction of the change that it is part of. It returns the revision of the message, the
// first one if there are several. Errors: fault.NotFound if no agent matches the target, fault.Denied for a directive
// that the sender may not send.
func (s *Sender) Post(tx *store.Tx, session int64, l work.Letter) (revision int64, err error) {
	scope, err := s.dir.ByID(tx, session)
	if err != nil {
		return 0, fmt.Errorf("post: %w", err)
	}
	from := directory.Agent{Name: cmp.Or(l.From.Name, identity.System), Role: l.From.Role}
	part := s.router.NewPartTx(tx, mail.Actor{Agent: from, Session: scope}, router.Part{Overfull: true})
	l.Type = msgtype.Canonical(l.Type)
	for _, t := range targets(&l) {
		d, err := draft(&l, t)
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
func targets(l *work.Letter) []mail.Target {
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
func draft(l *work.Letter, t mail.Target) (*mail.Draft, error) {
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
