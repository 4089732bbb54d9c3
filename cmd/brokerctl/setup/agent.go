package setup

import (
	"regexp"
	"slices"
)

// In what setup writes, an option with the name of the agent follows a command of brokerctl: in one text, as
// `brokerctl hook codex --agent codex-1`, or as an element of its own, as in ["mcp", "--agent", "codex-1"].
const agentOption = "--agent"

// hookAgent matches the option in a command of one text, with the name.
var hookAgent = regexp.MustCompile(`^(` + hookMark + ` [a-z-]+) ` + agentOption + ` (\S+)`)

// nameless returns a value of JSON or TOML without the option and the name of an agent.
func nameless(v any) any {
	switch v := v.(type) {
	case string:
		return hookAgent.ReplaceAllString(v, "$1")
	case map[string]any:
		without := make(map[string]any, len(v))
		for key, value := range v {
			without[key] = nameless(value)
		}
		return without
	case []any:
		without := make([]any, 0, len(v))
		skip := optionIn(v)
		for i, value := range v {
			if skip < 0 || i != skip && i != skip+1 {
				without = append(without, nameless(value))
			}
		}
		return without
	}
	return v
}

// optionIn returns the index of the option in the words of a command of brokerctl, or -1.
func optionIn(words []any) int {
	i := slices.Index(words, any(agentOption))
	if i < 1 || i+1 >= len(words) || words[i-1] != "mcp" {
		return -1
	}
	return i
}

// agentOf returns the name in the words of an MCP server's command, or "".
func agentOf(server any) string {
	members, _ := server.(map[string]any)
	for _, key := range []string{"args", "command"} {
		words, _ := members[key].([]any)
		if i := optionIn(words); i >= 0 {
			name, _ := words[i+1].(string)
			return name
		}
	}
	return ""
}
