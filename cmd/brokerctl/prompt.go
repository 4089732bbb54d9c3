package main

import (
	"fmt"
	"io"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// voice is how texts name commands and times in this run.
func (c *cli) voice() prompt.Voice {
	return prompt.Voice{
		Command:   func(line string) string { return c.command("%s", line) },
		Also:      func(line string) string { return c.also("%s", line) },
		Suggested: c.likewise,
		When:      c.when,
		Since:     c.since,
		Work:      c.workAgain,
	}
}

// printPrompt writes a message for a language model.
func (c *cli) printPrompt(w io.Writer, r prompt.Rendered) { c.voice().Message(w, r) }

// received renders a message in a mailbox.
func (c *cli) received(item *pb.InboxItem) prompt.Rendered { return c.voice().Received(item) }

// again is how a suggested command begins: with the flags by which this run was told where and as whom it acts.
func (c *cli) again() string {
	s := "brokerctl" + prompt.Either(c.global.noConfig, " --no-config", "") + prompt.Either(c.global.operator, " --agent ''", "")
	for _, f := range [][2]string{{"--addr", c.global.addr}, {"--session", c.global.session}, {"--agent", c.global.agent}} {
		if f[1] != "" {
			s += " " + f[0] + " " + prompt.ShellWord(f[1])
		}
	}
	return s
}

// command is a suggested command line, with the flags by which this run was told where and as whom
// it acts.
func (c *cli) command(format string, args ...any) string {
	return c.again() + " " + fmt.Sprintf(format, args...)
}

// also is a command that follows another one in a sentence: a shell's needs no flags again.
func (c *cli) also(format string, args ...any) string {
	return fmt.Sprintf(format, args...)
}
