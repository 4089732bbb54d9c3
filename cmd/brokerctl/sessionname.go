package main

import (
	"cmp"
	"errors"
	"path/filepath"
	"strings"

	"brokerd/cmd/brokerctl/harness"
	"brokerd/internal/prompt"

	pb "brokerd/gen/brokerd/v1"
)

// sessions returns the sessions of coding agents on this machine; nil if there is no place for them.
func (c *cli) sessions() *harness.Sessions {
	dir, err := c.env.cacheDir()
	if err != nil {
		return nil
	}
	return harness.Open(filepath.Join(dir, "brokerctl", "sessions"), c.env.Now)
}

// ancestors returns the processes above this one.
func (c *cli) ancestors() []harness.Known {
	if c.env.Ancestors == nil {
		return nil
	}
	return c.env.Ancestors()
}

// shellOffer says to whom notices are offered that this command prints for the model of a coding agent whose
// hooks report what becomes of them; nil if there is none, and printing them reads them.
func (c *cli) shellOffer() *pb.NoticeOffer {
	all := c.sessions()
	if all == nil || !all.Any() {
		return nil
	}
	one, known := all.Of(c.hookSession())
	if !known {
		if one, known = all.In(c.ancestors()); !known || one.ID == "" {
			return nil
		}
	}
	if one.Program != "claude-code" && one.Program != "codex" {
		return nil // the files of their conversations say which output of a command the model has got
	}
	mark := c.env.Mark()
	if c.prompt != nil {
		mark = c.prompt.Mark()
	}
	return &pb.NoticeOffer{Way: pb.OfferWay_OFFER_WAY_SHELL, Harness: prompt.Clip(prompt.OneLine(one.ID), 128), Mark: mark}
}

// brokerOf tells which sessions exclude each other's names: those of one broker and session.
func (c *cli) brokerOf(s *settings) string {
	return strings.Join([]string{s.addr.value, c.env.get("BROKERD_DATA"), cmp.Or(s.session.value, "default")}, "\n")
}

// nameSession makes the settings those of the session of the coding agent that this run belongs to: its hooks give it a
// name, and the commands of its model find it. An agent that the caller names stays: by --agent on a command line, by
// agent run, by init in the session, or by a credential.
func (c *cli) nameSession(s *settings) error {
	hook := c.hooked.ID != ""
	chosen := s.credentialFile.value != "" || c.env.get("BROKERD_INCARNATION") != "" || strings.Contains(s.agent.from, "hook session") ||
		(s.agent.from == "--agent" || c.global.yields) && !hook || c.global.operator // an MCP server has its own way
	all := c.sessions()
	if chosen || all == nil || hook && s.agent.value == "" || !hook && !all.Any() {
		return nil
	}
	one, known := all.Of(c.hookSession())
	switch {
	case hook:
		wanted := c.hooked
		wanted.Broker, wanted.Base = c.brokerOf(s), s.agent.value
		if !known || one.Broker != wanted.Broker || one.Base != wanted.Base || one.Process != wanted.Process || one.Lock != wanted.Lock {
			var err error
			switch one, err = all.Take(wanted, numbered(wanted.Base), nil); {
			case errors.Is(err, harness.ErrTaken):
				return usagef("the names %s-2 and so on are all in use on this machine: end other sessions of the coding agent", wanted.Base)
			case err != nil: // without a place for it, all sessions have one name
				return nil
			}
		}
	case !known:
		if one, known = all.In(c.ancestors()); !known {
			return nil
		}
		fallthrough
	default:
		if one.Broker != c.brokerOf(s) || s.agent.value != "" && s.agent.value != one.Base {
			return nil
		}
	}
	if s.agent.value != one.Name || s.unchosen != nil {
		s.base, s.unchosen, s.agent = one.Base, nil, setting{one.Name, "the session of " + cmp.Or(one.Program, "the coding agent")}
	}
	if c.global.agent != "" {
		c.global.agent = one.Name // for suggested commands
	}
	return nil
}

// baseOf returns the name under which the configFile describes the agent of the settings.
func (s *settings) baseOf() string { return cmp.Or(s.base, s.agent.value) }

// codexHome returns the folder of Codex.
func (c *cli) codexHome() (string, error) {
	if home := c.env.get("CODEX_HOME"); home != "" {
		return home, nil
	}
	dir, err := c.env.homeDir()
	return filepath.Join(dir, ".codex"), err
}

// codexLock returns the file that Codex keeps locked while a program has a session open.
func codexLock(home, id string) string {
	return filepath.Join(home, "thread-writer-locks", filepath.Base(id)+".lock")
}
