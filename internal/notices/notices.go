package notices

import (
	"errors"
	"fmt"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/content"
	"brokerd/internal/directory"
	"brokerd/internal/mail"
	"brokerd/internal/msgtype"
	"brokerd/internal/router"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

const (
	noticePriority = 7
	noticeTTL      = 24 * time.Hour // after that, an unread notice is no news
)

// A Sender sends the messages of the broker itself and of its features. Its methods may be called concurrently.
type Sender struct {
	dir    *directory.Directory
	broker *broker.Broker
	router *router.Router
}

// New returns a sender that sends through the router.
func New(dir *directory.Directory, core *broker.Broker, sends *router.Router) *Sender {
	return &Sender{dir: dir, broker: core, router: sends}
}

// Notify sends a notice in the transaction of the change that it reports. If the role
// has more agents than one function notifies, the backlog sends the other copies. Full mailboxes take it too: no caller
// could learn that it was refused. Notify sends nothing, without an error, if the agent is not registered, no agent has
// the role, or the session is closed or deleted: that must not undo the change.
func (s *Sender) Notify(tx *store.Tx, session int64, n work.Notice) error {
	scope, err := s.dir.ByID(tx, session)
	if errors.Is(err, store.ErrNoRows) || err == nil && scope.Closed() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	names, more, err := s.recipients(tx, session, n)
	if err != nil || len(names) == 0 && !more {
		return err
	}
	n.Type = msgtype.Canonical(n.Type)
	d, err := draftOf(n)
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	how := router.Part{Audience: names, More: more, Overfull: true, Notice: true}
	part := s.router.NewPartTx(tx, system(scope), how)
	out, err := part.Send(d)
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	tx.Exec(updateAbout, n.About, out.Revision)
	if more {
		part.CopyLater(out.Revision, n.Role, names)
	}
	return part.Finish()
}

// recipients returns the agents that receive a notice at once, and whether the role has more.
func (s *Sender) recipients(tx *store.Tx, session int64, n work.Notice) (names []string, more bool, err error) {
	if n.Agent != "" {
		_, found, err := s.dir.Find(tx, session, n.Agent)
		if err != nil || !found {
			return nil, false, err
		}
		return []string{n.Agent}, false, nil
	}
	if n.Role == "" {
		return nil, false, nil
	}
	most := router.CopiesAtOnce(tx)
	if names, err = mail.OfRole(s.dir, tx, session, n.Role, "", most+1); err != nil || len(names) <= most {
		return names, false, err
	}
	return names[:most], true, nil
}

// draftOf returns a notice as a message.
func draftOf(n work.Notice) (*mail.Draft, error) {
	d := &mail.Draft{
		Target: mail.Target{Kind: mail.ToAgent, Name: n.Agent},
		Type:   n.Type, Subject: content.Clip(n.Subject, validate.MaxLine),
		Priority: noticePriority, Task: n.Task, TTL: noticeTTL,
	}
	if n.Agent == "" {
		d.Target = mail.Target{Kind: mail.ToRole, Name: n.Role}
	}
	says := content.Message{
		Agent: n.Agent, Role: n.Role, Type: d.Type, Priority: d.Priority, Subject: d.Subject, Payload: n.Payload,
		Task: n.Task,
	}
	var err error
	d.Content, err = says.Marshal()
	return d, err
}

// system returns the broker itself, acting in a session.
func system(session directory.Session) mail.Actor {
	a := mail.System(session.ID)
	a.Session = session
	return a
}
