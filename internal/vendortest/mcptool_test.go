package vendortest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fakemodel"
)

// mailHooks are the files with the hooks of programs that know the type mcp_tool.
var mailHooks = map[string]string{"claude-code": ".claude/settings.json", "codex": ".codex/hooks.json"}

// callsCommand replaces the hooks after a call of a tool, of which one calls the tool mail, by a command, as
// setup writes it for older versions.
func (r *run) callsCommand(file string) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.project, file))
	if err != nil {
		r.t.Fatal(err)
	}
	var settings map[string]any
	if err := json.Unmarshal(text, &settings); err != nil {
		r.t.Fatal(err)
	}
	if !strings.Contains(string(text), `"mcp_tool"`) {
		r.t.Errorf("setup has added no hook of the type mcp_tool: %s", text)
	}
	settings["hooks"].(map[string]any)["PostToolUse"] = []any{map[string]any{"hooks": []any{map[string]any{
		"type": "command", "command": "brokerctl hook " + r.vendor.name + " --agent builder-1", "timeout": 30,
	}}}}
	r.write(r.project, file, settings)
}

// A hook that is a command passes a message to the model as the tool mail does.
func TestCommand_MailInATurnIsInTheNextRequest(t *testing.T) {
	headless(t, func(r *run) {
		file := mailHooks[r.vendor.name]
		if file == "" {
			r.t.Skip("it has no hooks of the type mcp_tool")
		}
		r.callsCommand(file)
		p := r.start("RUN: " + hold + "\nRUN: true\nRUN: true")
		r.begun(p)
		id := r.send("MAIL-by-a-command")
		r.release()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := r.model.Await(ctx, func(q *fakemodel.Request) bool { return q.Has("MAIL-by-a-command") }); err != nil {
			r.t.Errorf("%v\n%s", err, p.out.String())
		}
		r.wait(p)
		d := r.delivery(id)
		if o := d.GetOffers(); len(o) != 1 || o[0].GetWay() != pb.OfferWay_OFFER_WAY_TOOL_CALL || d.GetReadAt() == nil {
			r.t.Errorf("read at %v, offers: %v", d.GetReadAt(), o)
		}
		r.truthful()
	})
}
