package mail

import (
	"strings"

	"github.com/spf13/pflag"
)

// TakeOptions say what to take; claim and work share them.
type TakeOptions struct {
	Consumer       string
	mailboxes      []string
	role           string
	Types          []string
	LowestPriority string
}

// AddFlags adds the options.
func (o *TakeOptions) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.mailboxes, "mailbox", nil, "only from this mailbox: the agent's name, role:NAME or channel:NAME; repeatable (default: all that the agent may take from)")
	f.StringVar(&o.role, "role", "", "only from this role's queue; the same as --mailbox role:NAME")
	f.StringSliceVar(&o.Types, "type", nil, "only this type; repeatable")
	f.StringVar(&o.LowestPriority, "lowest-priority", "", "only this priority or a higher one")
}

// From returns the mailboxes to take from; none = all.
func (o *TakeOptions) From() []string {
	if o.role == "" {
		return o.mailboxes
	}
	return append(o.mailboxes[:len(o.mailboxes):len(o.mailboxes)], "role:"+o.role)
}

// IsQueue reports whether a mailbox is the queue of a role or channel.
func IsQueue(mailbox string) bool {
	return strings.HasPrefix(mailbox, "role:") || strings.HasPrefix(mailbox, "channel:")
}
