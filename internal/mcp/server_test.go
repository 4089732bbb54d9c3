package mcp_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"brokerd/internal/apptest"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

// A brokenAgent panics.
type brokenAgent struct{ slowBroker }

func (*brokenAgent) Join(context.Context, string) (string, error) { panic("no luck") }

func TestCall_APanicIsAResultAndTheServerContinues(t *testing.T) {
	t.Parallel()
	here, there := sdk.NewInMemoryTransports()
	defects := make(chan any, 10)
	server := mcp.New(mcp.Options{
		Agent: func(context.Context) mcp.Agent { return &brokenAgent{} }, Clock: clockwork.NewRealClock(), Mark: prompt.NewMark,
		Harness: "test", Defect: func(p any) { defects <- p },
	})
	apptest.NoError(t, apptest.Err(server.Connect(t.Context(), here, nil)))
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), there, nil)
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = session.Close() }) // it ends with the test
	for tool, args := range map[string]map[string]any{"turn": {}, "mail": {"event": "PostToolUse"}} {
		result, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
		apptest.NoError(t, err)
		text := result.Content[0].(*sdk.TextContent).Text
		if !strings.Contains(text, "a defect of the broker") || result.IsError != (tool == "turn") {
			t.Errorf("%s: %s, an error: %t", tool, text, result.IsError)
		}
		if p := <-defects; p != "no luck" {
			t.Errorf("%v", p)
		}
	}
}
