package setting

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/brokerctl/internal/problem"
)

// Sessions returns the sessions of coding agents on this machine; nil if there is no place for them.
func (r *Resolver) Sessions() *harness.Sessions {
	dir, err := r.Env.CacheDir()
	if err != nil {
		return nil
	}
	return harness.Open(filepath.Join(dir, "brokerctl", "sessions"), r.Env.Now)
}

// Ancestors returns the processes above this one.
func (r *Resolver) Ancestors() []harness.Known {
	if r.Env.Ancestors == nil {
		return nil
	}
	return r.Env.Ancestors()
}

// BrokerOf returns a text that is the same for the sessions whose names exclude each other: those of one broker and
// session.
func (r *Resolver) BrokerOf(s *Settings) string {
	return strings.Join([]string{s.Addr.Value, r.Env.Get("BROKERD_DATA"), cmp.Or(s.Session.Value, "default")}, "\n")
}

// nameSession makes the settings those of the session of the coding agent that this run belongs to: its hooks give it a
// name, and the commands of its model find it. An agent that the caller names stays: by --agent on a command line, by
// agent run, by init in the session, or by a credential.
func (r *Resolver) nameSession(s *Settings) error {
	hook := r.Hooked.ID != ""
	chosen := s.CredentialFile.Value != "" || r.Env.Get("BROKERD_INCARNATION") != "" || strings.Contains(s.Agent.From, "hook session") ||
		(s.Agent.From == "--agent" || r.Global.Yields) && !hook || r.Global.Operator // an MCP server has its own way
	all := r.Sessions()
	if chosen || all == nil || hook && s.Agent.Value == "" || !hook && !all.Any() {
		return nil
	}
	one, known := all.Of(r.HookSession())
	switch {
	case hook:
		wanted := r.Hooked
		wanted.Broker, wanted.Base = r.BrokerOf(s), s.Agent.Value
		if !known || one.Broker != wanted.Broker || one.Base != wanted.Base || one.Process != wanted.Process || one.Lock != wanted.Lock {
			var err error
			switch one, err = all.Take(wanted, Numbered(wanted.Base), nil); {
			case errors.Is(err, harness.ErrTaken):
				return problem.Usagef("the names %s-2 and so on are all in use on this machine: end other sessions of the coding agent", wanted.Base)
			case err != nil: // without a place for it, all sessions have one name
				return nil
			}
		}
	case !known:
		if one, known = all.In(r.Ancestors()); !known {
			return nil
		}
		fallthrough
	default:
		if one.Broker != r.BrokerOf(s) || s.Agent.Value != "" && s.Agent.Value != one.Base {
			return nil
		}
	}
	if s.Agent.Value != one.Name || s.Unchosen != nil {
		s.base, s.Unchosen, s.Agent = one.Base, nil, Value{one.Name, "the session of " + cmp.Or(one.Program, "the coding agent")}
	}
	if r.Global.Agent != "" {
		r.Global.Agent = one.Name // for suggested commands
	}
	return nil
}

// BaseOf returns the name under which the configFile describes the agent of the settings.
func (s *Settings) BaseOf() string { return cmp.Or(s.base, s.Agent.Value) }

// Numbered returns the names that an agent may get: NAME, NAME-2, NAME-3 and so on.
func Numbered(name string) []string {
	const most = 20
	names := []string{name}
	for n := 2; n <= most; n++ {
		names = append(names, fmt.Sprintf("%s-%d", name, n))
	}
	return names
}
