package vendortest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fakemodel"
)

// mailHooks are the files with the hooks of programs that know the type mcp_tool.
var mailHooks = map[string]string{"claude-code": ".claude/settings.json", "codex": ".codex/hooks.json"}

// mailInput returns the input of the tool mail, with what the event says.
func (r *run) mailInput() map[string]string {
	input := map[string]string{
		"event": "PostToolUse", "session": "${session_id}", "transcript": "${transcript_path}", "call": "${tool_use_id}",
	}
	if r.vendor.name == "claude-code" { // a hook of Codex fails if its event does not have the field
		input["agent"] = "${agent_id}"
	}
	return input
}

// callsMail replaces the hook after a call of a tool by one that calls the tool mail.
func (r *run) callsMail(file string) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.project, file))
	if err != nil {
		r.t.Fatal(err)
	}
	var settings map[string]any
	if err := json.Unmarshal(text, &settings); err != nil {
		r.t.Fatal(err)
	}
	settings["hooks"].(map[string]any)["PostToolUse"] = []any{map[string]any{"hooks": []any{map[string]any{
		"type": "mcp_tool", "server": "brokerd", "tool": "mail", "input": r.mailInput(),
	}}}}
	r.write(r.project, file, settings)
}

// A hook that calls the tool mail passes a message to the model, and a call of another answer of the model is evidence.
func TestMCPTool_MailInATurnIsInTheNextRequest(t *testing.T) {
	headless(t, func(r *run) {
		file := mailHooks[r.vendor.name]
		if file == "" {
			r.t.Skip("it has no hooks of the type mcp_tool")
		}
		r.callsMail(file)
		if r.vendor.name == "codex" { // its MCP servers do not have its environment
			config := filepath.Join(r.project, ".codex/config.toml")
			text, err := os.ReadFile(config)
			if err != nil {
				r.t.Fatal(err)
			}
			r.write(r.project, ".codex/config.toml", string(text)+"[mcp_servers.brokerd.env]\nBROKERD_DATA = \""+r.daemon.Dir()+"\"\n")
		}
		p := r.start("RUN: " + hold + "\nRUN: true\nRUN: true")
		r.begun(p)
		id := r.send("MAIL-by-a-tool")
		r.release()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := r.model.Await(ctx, func(q *fakemodel.Request) bool { return q.Has("MAIL-by-a-tool") }); err != nil {
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
