package admission

import (
	"context"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/content"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// A Disk reports whether the disk has space for more messages.
type Disk interface {
	// Check returns fault.Exhausted if the disk is too full for sends. It must be quick.
	Check() error
}

// UseDisk has sends refused when the disk is too full for them. Without it, no send is refused. Call it before the
// control is used.
func (c *Control) UseDisk(d Disk) { c.disk = d }

// Admit implements router.Admission.
func (c *Control) Admit(ctx context.Context, who identity.Caller, n int) error {
	most := longestWait
	if deadline, ok := ctx.Deadline(); ok {
		most = clockwork.NewRealClock().Until(deadline) // a call's deadline runs by no other clock
	}
	return c.admitWithin(ctx, who, n, most)
}

func (c *Control) admitWithin(ctx context.Context, who identity.Caller, n int, most time.Duration) error {
	if c.disk != nil {
		if err := c.disk.Check(); err != nil {
			return err
		}
	}
	return c.rates.wait(ctx, who, n, most)
}

// AdmitBatch returns when a batch of a stream may be sent, however long that takes. If it may not, its drafts carry the
// fault. An error ends the stream.
func (c *Control) AdmitBatch(ctx context.Context, who identity.Caller, drafts []mail.Draft) error {
	n := 0
	for i := range drafts {
		if drafts[i].Fault == nil {
			n++
		}
	}
	err := c.admitWithin(ctx, who, n, endless)
	if fault.KindOf(err) != fault.Exhausted {
		return err
	}
	for i := range drafts {
		if drafts[i].Fault == nil {
			drafts[i].Fault = err
		}
	}
	return nil
}

// Judge implements router.Admission.
func (c *Control) Judge(session *directory.Session, d *mail.Draft) (doubts []string, err error) {
	limit := int(session.Settings.GetPayloadLimit())
	if limit > 0 && d.PayloadSize > limit {
		return nil, fault.Field("payload",
			"has %d bytes; at most %d are allowed (session setting payload_limit)", d.PayloadSize, limit)
	}
	limit = int(session.Settings.GetMessageLimit())
	if limit > 0 && len(d.Content) > limit {
		return nil, content.TooLarge(len(d.Content), limit)
	}
	return d.Doubt.Judge(session.Types())
}

// loadSession reads a session outside the writer.
func (c *Control) loadSession(ctx context.Context, name string) (session directory.Session, err error) {
	err = c.store.Read(ctx, func(snap *store.Snapshot) error {
		session, err = c.dir.Session(snap, name)
		return err
	})
	return session, err
}
