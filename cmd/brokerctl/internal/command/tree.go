package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/problem"
)

// aliases are the other names of verbs, in every group.
var aliases = map[string]string{"list": "ls", "delete": "rm"}

// synonyms are words of other programs, and the words that stand for each of them here. The first that the group at hand
// has is meant.
var synonyms = map[string][]string{
	"show": {"get"}, "describe": {"get"}, "inspect": {"get"}, "view": {"get"}, "watch": {"follow"}, "tail": {"follow"},
	"stream": {"follow"}, "purge": {"delete"}, "remove": {"delete"}, "force-release": {"revoke"}, "steal": {"revoke"},
	"break": {"revoke"}, "unlock": {"release"}, "renew": {"extend"}, "set": {"put"}, "put": {"put", "upload"},
	"create": {"create", "open", "register", "raise", "upload", "issue", "submit"}, "add": {"create", "register", "upload"},
	"new": {"create", "open", "register"}, "join": {"subscribe"}, "leave": {"unsubscribe"},
	"log": {"event"}, "logs": {"event"}, "history": {"event"}, "dead-letters": {"dlq"}, "mail": {"inbox"},
	"whois": {"whoami"}, "topic": {"channel"}, "topics": {"channel"}, "queue": {"mailbox"}, "queues": {"mailbox"},
	"msg": {"message"}, "config": {"init"}, "configure": {"init"}, "doctor": {"explain"}, "login": {"dashboard"},
	"ui": {"dashboard"}, "start": {"up"}, "serve": {"up"}, "daemon": {"up"}, "stop": {"down"},
}

// AddAliases gives all commands below one their other names: a group that lists things also has its
// plural.
func AddAliases(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		if alias := aliases[sub.Name()]; alias != "" && cmd.HasParent() {
			sub.Aliases = append(sub.Aliases, alias)
		}
		if command(sub, "list") != nil && command(sub, "get") != nil {
			sub.Aliases = append(sub.Aliases, sub.Name()+"s")
		}
		AddAliases(sub)
	}
}

// command returns the command of a name directly below another one, or nil.
func command(parent *cobra.Command, name string) *cobra.Command {
	for _, sub := range parent.Commands() {
		if sub.Name() == name || sub.HasAlias(name) {
			return sub
		}
	}
	return nil
}

// UnknownCommand is the error of a command that does not exist, with those that may be meant.
func UnknownCommand(parent *cobra.Command, args []string) error {
	return problem.Usagef("unknown command %q for %s%s", args[0], parent.CommandPath(), DidYouMean("", meant(parent, args)))
}

// meant returns the commands that may be meant by a line that names none: by another program's
// verb, by a verb before its noun, by a verb without its noun, or by a name that is nearly right.
func meant(parent *cobra.Command, args []string) []string {
	word := args[0]
	if known := synonyms[word]; known != nil {
		word = known[max(0, slices.IndexFunc(known, func(w string) bool { return command(parent, w) != nil }))]
	}
	if cmd := command(parent, word); cmd != nil && cmd.HasSubCommands() {
		return paths(command(cmd, "list"), command(cmd, "follow"))
	} else if cmd != nil {
		return paths(cmd)
	}
	if cmd := command(parent.Root(), word); parent.HasParent() && cmd != nil && !cmd.HasSubCommands() {
		return paths(cmd)
	}
	var below []*cobra.Command
	for _, group := range parent.Commands() {
		cmd := command(group, word)
		if cmd != nil && len(args) > 1 && (args[1] == group.Name() || group.HasAlias(args[1])) {
			return paths(cmd)
		}
		below = append(below, cmd)
	}
	if found := paths(below...); len(found) > 0 {
		return found
	}
	var names []string
	for _, sub := range parent.Commands() {
		if sub.IsAvailableCommand() {
			names = append(append(names, sub.Name()), sub.Aliases...)
		}
	}
	var found []*cobra.Command
	for _, name := range Near(args[0], names) {
		if cmd := command(parent, name); !slices.Contains(found, cmd) {
			found = append(found, cmd)
		}
	}
	return paths(found...)
}

// paths returns how the commands that are not nil are called, without the program's name.
func paths(commands ...*cobra.Command) []string {
	var found []string
	for _, cmd := range commands {
		if cmd != nil {
			found = append(found, strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" "))
		}
	}
	return found
}

// Near returns the words that begin with a word, or else those that the fewest edits turn into it:
// at most two, one in a short word.
func Near(word string, words []string) []string {
	var found []string
	fewest := min(2, 1+len(word)/4)
	for _, w := range words {
		if word != "" && strings.HasPrefix(w, word) {
			found = append(found, w)
		}
	}
	if len(found) > 0 {
		return found
	}
	for _, w := range words {
		switch n := edits(w, word); {
		case n < fewest:
			found, fewest = []string{w}, n
		case n == fewest:
			found = append(found, w)
		}
	}
	return found
}

// edits returns how many insertions, deletions, replacements and swaps of neighbours turn the bytes
// of a into b.
func edits(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], 1+rows[i-2][j-2])
			}
		}
	}
	return rows[len(a)][len(b)]
}

// DidYouMean is the end of an error that proposes words, each with a prefix; "" if there are none.
func DidYouMean(prefix string, words []string) string {
	if len(words) == 0 {
		return ""
	}
	words = slices.Clone(words)
	for i := range words {
		words[i] = prefix + words[i]
	}
	last := len(words) - 1
	if last == 0 {
		return fmt.Sprintf("; did you mean %s?", words[0])
	}
	return fmt.Sprintf("; did you mean %s or %s?", strings.Join(words[:last], ", "), words[last])
}
