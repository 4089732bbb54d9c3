package words

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/turn"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// AllLocks returns the fences and paths of all locks.
func AllLocks(c *command.Caller) command.WordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		return lockWords(c, ctx, broker, "")
	}
}

// OwnLocks returns the fences and paths of the agent's locks.
func OwnLocks(c *command.Caller) command.WordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		return lockWords(c, ctx, broker, broker.Identity().Agent)
	}
}

// lockWords returns the fences and paths of an agent's locks, or of all agents' if it is empty. The
// paths are relative to the working folder.
func lockWords(c *command.Caller, ctx context.Context, broker *client.Client, agent string) ([]string, error) {
	page, err := broker.Locks().ListLocks(ctx, &pb.ListLocksRequest{Agent: agent, PageSize: command.MaxPage})
	if err != nil {
		return nil, err
	}
	known, err := turn.Paths(c, "")
	if err != nil {
		return nil, err
	}
	dir, err := c.Env.WorkingDir()
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, err
	}
	var words []string
	for _, l := range page.GetLocks() {
		words = append(words, strconv.FormatInt(l.GetFence(), 10)+"\t"+prompt.Paths(l.GetPaths()))
		for _, path := range l.GetPaths() {
			if relative, err := filepath.Rel(dir, filepath.Join(known.Root(), path)); err == nil {
				words = append(words, relative+prompt.Either(strings.HasSuffix(path, "/"), "/", ""))
			}
		}
	}
	return words, nil
}

// TokenWords returns the scopes of the tokens of a type, or the types if it is empty.
func TokenWords(kind string) command.WordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.As("").Tokens().ListTokens(ctx, &pb.ListTokensRequest{Type: kind, PageSize: command.MaxPage})
		words := each.Of(page.GetTokens(), func(k *pb.Token) string {
			return prompt.Either(kind == "", k.GetType(), k.GetScope())
		})
		slices.Sort(words)
		return slices.Compact(words), err
	}
}

// OneToken are the arguments that name a token.
var OneToken = []command.Arg{
	{Field: "type", Name: "the type", Kind: command.Kind{Words: TokenWords("")}},
	{Field: "scope", Name: "the scope", After: func(before []string) command.Kind {
		return command.Kind{Words: TokenWords(before[0])}
	}},
}
