package vendortest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	pb "brokerd/gen/brokerd/v1"
)

// A vendor is a coding agent, as its table in brokerctl setup names it.
type vendor struct {
	name    string
	program string
	once    func(prompt string) []string // the arguments of a run without a screen
	screen  []string                     // the arguments of a run with a screen
	resume  []string                     // and of one that resumes the last session
	shows   string                       // what the screen shows then; empty = ready
	again   string                       // what the screen shows after Esc if it ends a turn only when it is pressed twice
	ended   string                       // what the screen shows then; needed if no mail follows
	ready   string                       // what the screen shows when it takes prompts
	idle    pb.OfferWay                  // how mail wakes an idle session; none: it does not
	early   bool                         // also before its first turn
	leaves  bool                         // a run without a screen leaves mail that comes during its last answer
	bare    func(r *run)                 // gives a project without the additions of setup what costs the program the same; or nil
	seed    func(r *run)                 // writes what the program needs to begin without a question
}

var vendors = []vendor{
	{
		name: "claude-code", program: "claude",
		screen: []string{"--permission-mode", "default"}, ready: "shortcuts",
		resume: []string{"--continue"},
		idle:   pb.OfferWay_OFFER_WAY_WAKE, early: true,
		once: func(prompt string) []string { return []string{"-p", prompt} },
		seed: func(r *run) {
			const key = "sk-ant-api03-fake-key-of-the-tests-0123456789"
			r.env("ANTHROPIC_BASE_URL="+r.model.URL(), "ANTHROPIC_API_KEY="+key, "DISABLE_TELEMETRY=1",
				"DISABLE_ERROR_REPORTING=1", "DISABLE_AUTOUPDATER=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
			r.write(r.home, ".claude.json", map[string]any{
				"hasCompletedOnboarding": true, "customApiKeyResponses": map[string]any{"approved": []string{key[len(key)-20:]}},
				"projects": map[string]any{r.project: map[string]any{
					"hasTrustDialogAccepted": true, "enabledMcpjsonServers": []string{"brokerd"},
				}},
			})
			r.write(r.home, ".claude/settings.json", map[string]any{"permissions": map[string]any{"allow": []string{"Bash", "mcp__brokerd"}}})
		},
	},
	{
		name: "codex", program: "codex",
		ready: "Ask", idle: pb.OfferWay_OFFER_WAY_APP_SERVER,
		resume: []string{"resume", "--last"},
		once: func(prompt string) []string {
			return []string{"exec", "--skip-git-repo-check", "--dangerously-bypass-hook-trust", prompt}
		},
		seed: func(r *run) {
			r.env("CODEX_HOME="+filepath.Join(r.home, ".codex"), "FAKE_KEY=fake")
			r.write(r.home, ".codex/config.toml", fmt.Sprintf(`model = "gpt-5-codex"
model_provider = "fake"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[model_providers.fake]
name = "fake"
base_url = "%s/v1"
env_key = "FAKE_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
[projects."%s"]
trust_level = "trusted"
`, r.model.URL(), r.project))
		},
	},
	{
		name: "gemini", program: "gemini",
		screen: []string{"--approval-mode", "yolo"}, ready: "Type your message",
		resume: []string{"--resume", "latest"}, ended: "ancelled",
		once: func(prompt string) []string { return []string{"--approval-mode", "yolo", "-p", prompt} },
		seed: func(r *run) {
			r.env("GOOGLE_GEMINI_BASE_URL="+r.model.URL(), "GEMINI_API_KEY=fake", "GEMINI_CLI_TRUST_WORKSPACE=true",
				"GEMINI_TELEMETRY_ENABLED=false")
			r.write(r.home, ".gemini/settings.json", map[string]any{
				"general": map[string]any{"enableAutoUpdate": false}, "privacy": map[string]any{"usageStatisticsEnabled": false},
				"security": map[string]any{"auth": map[string]any{"selectedType": "gemini-api-key"}},
			})
		},
	},
	{
		name: "opencode", program: "opencode",
		ready: "Ask", idle: pb.OfferWay_OFFER_WAY_PLUGIN,
		resume: []string{"--continue"}, shows: "PROMPT-killed", again: "again", leaves: true,
		bare: func(r *run) { // it installs packages where there is a plugin
			r.write(r.project, ".opencode/plugins/none.js", "export const None = async () => ({})\n")
		},
		once: func(prompt string) []string { return []string{"run", prompt} },
		seed: func(r *run) {
			r.env("npm_config_fetch_retries=0", "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1",
				"OPENCODE_DISABLE_LSP_DOWNLOAD=1", "OPENCODE_DISABLE_SHARE=1")
			r.write(r.home, ".config/opencode/opencode.json", map[string]any{
				"model": "fake/fake", "small_model": "fake/fake", "share": "disabled", "autoupdate": false,
				"permission": map[string]any{"bash": "allow", "edit": "allow"},
				"provider": map[string]any{"fake": map[string]any{
					"npm": "@ai-sdk/openai-compatible", "name": "fake",
					"options": map[string]any{"baseURL": r.model.URL() + "/v1", "apiKey": "fake"},
					"models": map[string]any{"fake": map[string]any{
						"name": "fake", "tool_call": true, "limit": map[string]any{"context": 100_000, "output": 8000},
					}},
				}},
			})
		},
	},
}

// find returns the folder with the program of a vendor; "" if it is not installed.
func (v *vendor) find() string {
	folder := os.Getenv("VENDOR_PROGRAMS")
	if folder == "" {
		return ""
	}
	for _, dir := range []string{folder, filepath.Join(folder, v.name)} {
		bin := filepath.Join(dir, "node_modules", ".bin")
		if _, err := os.Stat(filepath.Join(bin, v.program)); err == nil {
			return bin
		}
	}
	return ""
}

// write writes a file below a folder: a text, or a value as JSON.
func (r *run) write(folder, name string, content any) {
	r.t.Helper()
	text, ok := content.(string)
	if !ok {
		b, err := json.Marshal(content)
		if err != nil {
			r.t.Fatal(err)
		}
		text = string(b)
	}
	file := filepath.Join(folder, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// env adds variables to the environment of the program.
func (r *run) env(variables ...string) { r.variables = append(r.variables, variables...) }
