package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/jonboulle/clockwork"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"brokerd"
	"brokerd/client"
	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/registration"
	"brokerd/cmd/brokerctl/internal/turn"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

const mcpLong = `Serve the Model Context Protocol on standard input and output, so that a coding
agent takes part without a shell (docs/mcp.md). The server registers the agent,
sends its heartbeats while it runs, and connects again when the broker restarts.

The agent's name comes from --agent, BROKERD_AGENT or .brokerd.yaml, otherwise
from the working folder. If another such server on this machine has the name,
this one adds -2, -3 and so on. The server ends when standard input ends. The
agent has then stopped: it holds nothing, and its mail waits for the next start.

The flags of brokerctl agent register describe the agent here too.`

const (
	mcpLease = 10 * time.Minute // outlasts a restart of the coding agent
	mcpStart = 2 * time.Second  // how long the first call of a client waits for the registration
)

// Command is brokerctl mcp.
var Command = command.Procedure[*pb.RegisterAgentRequest]{
	Page: command.Page{
		Use:     "mcp",
		Short:   "Serve coding agents as an MCP server",
		Long:    mcpLong,
		Example: `  brokerctl mcp --agent builder-1 --role builder`,
	},
	FlagsOf: "agent register",
	Options: append(registration.Options(mcpLease), command.Option{
		Name: "deregister", Type: "bool",
		Usage: "deregister the agent at the end: its unfinished mail becomes dead letters",
	}),
	Run: func(g *command.Given, q *pb.RegisterAgentRequest) error {
		g.Global.Yields, g.Found = true, nil
		out := g.Cmd.OutOrStdout()
		return serveOne(g, q, &sdk.IOTransport{
			Reader: io.NopCloser(newMessageLines(g.Cmd.InOrStdin(), out)), Writer: nopWriteCloser{out}, MaxLineLength: -1,
		})
	},
}

// nopWriteCloser keeps a writer open when the session of the SDK ends.
type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }

// serveOne answers the calls of one client until it disconnects or the command ends.
func serveOne(g *command.Given, q *pb.RegisterAgentRequest, transport sdk.Transport) error {
	c, cmd := g.Caller, g.Cmd
	member, err := newMember(c, q, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	server := mcp.New(mcp.Options{
		Agent:   func(context.Context) mcp.Agent { return memberCalls{member} },
		Version: brokerd.ThisBuild().Version, Clock: clockwork.NewRealClock(), Mark: c.Env.Mark,
		Paths: func(names []string) ([]string, error) { return turn.LockPaths(c, names) }, Harness: "mcp-" + prompt.NewMark(),
		Evidence: func(conversation, call, mark string) bool {
			return call != "" && harness.Answered(conversation, call, mark)
		},
		Defect: func(p any) { fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: a call panicked: %v\n%s", p, debug.Stack()) },
	})
	// The agent is registered before the client's first call, if the broker answers in time.
	joining, cancel := context.WithTimeout(cmd.Context(), mcpStart)
	_ = member.do(joining, func(*client.Client) error { return nil })
	cancel()
	err = server.Run(cmd.Context(), transport)
	member.close(g.On("deregister"))
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) && cmd.Context().Err() == nil {
		return nil
	}
	return err
}
