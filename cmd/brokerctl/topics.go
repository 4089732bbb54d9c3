package main

import (
	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/problem"
)

const receiversTopic = `A receiver is written in the same way everywhere:

  builder-1          one agent
  role:builder       one agent of a role: the first that claims the message
                     (with --all: each of them)
  channel:general    every subscriber of a channel (with --one: one of them)
  'builder-*'        every agent whose name matches
  all_builders       every agent of the role builder, unless an agent has
                     that name
  everyone           every registered agent except the sender; all, ALL and
                     '*' mean the same
  operator           the mailbox of the operators, unless an agent has that
                     name (brokerctl inbox --operator)`

const exitCodesTopic = `

A command that runs another one (work, lock run, token run, agent run) otherwise
returns the exit code of that command.

With -o json, a failed command writes an object to standard error:
{"error":{"code","reason","message","fields","retry_after"}}. docs/json.md
describes it, and the codes.`

const environmentTopic = `Flags win over these variables, and these over the file .brokerd.yaml.

  BROKERD_ADDR             the broker, in the forms of --addr
  BROKERD_DATA             the data folder of the local broker
  BROKERD_SESSION          the session
  BROKERD_AGENT            the agent to act as
  BROKERD_INCARNATION      the number of the agent's registration
  BROKERD_HOLDER           the worker of the agent that owns locks and tokens
  BROKERD_FENCE            the fence of a lock or token that must be held: the
                           broker refuses every call once it is lost; it is
                           the fence of BROKERD_AGENT, so --agent ignores it
  BROKERD_ROOT             the folder that paths of locks are relative to
  BROKERD_CREDENTIAL_FILE  the file with the credential for TCP
  BROKERD_TLS_CA           the file with the authorities of the broker's
                           certificate; HOST:PORT then means TLS
  BROKERD_TLS_CERT         the file with the agent's certificate
  BROKERD_TLS_KEY          the file with its key
  BROKERD_TLS_SERVER_NAME  the name in the broker's certificate
  TRACEPARENT              the W3C traceparent of the span that calls belong to;
                           brokerctl work sets it for its commands
  BROKERD_OUTPUT           table, json, prompt or id
BROKERD_START            true: mcp and hook start a broker if none runs
  BROKERD_ROLE             the agent's role; set for commands that brokerctl
                           runs

brokerctl looks for .brokerd.yaml in the working folder and in the folders above
it. The file may have the keys addr, session, agents, output, start,
credential_file, tls_ca, tls_cert and tls_key. brokerctl init writes one.
The keys addr, credential_file, tls_ca, tls_cert and tls_key count only if you
trust the file: see brokerctl trust. --no-config ignores the file.

Flags and variables are one source of the address and of what proves who calls,
the file is another one. If flags or variables name the address, these five keys
do not count. If the file names it, BROKERD_CREDENTIAL_FILE and BROKERD_TLS_CERT
are not sent there.`

// topics returns the help pages that belong to no command.
func topics() []*cobra.Command {
	topic := func(name, short, long string) *cobra.Command {
		return &cobra.Command{Use: name, Short: short, Long: long}
	}
	return []*cobra.Command{
		topic("receivers", "How agents, roles and channels are addressed", receiversTopic),
		topic("exit-codes", "What the exit codes mean", problem.ExitHelp()+exitCodesTopic),
		topic("environment", "Variables and the configuration file", environmentTopic),
	}
}
