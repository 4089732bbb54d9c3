package main

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// completeFiles completes names of files, as shells do by themselves.
func completeFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// allLocks returns the fences and paths of all locks.
func (c *cli) allLocks(ctx context.Context, broker *client.Client) ([]string, error) {
	return c.lockWords(ctx, broker, "")
}

// ownLocks returns the fences and paths of the agent's locks.
func (c *cli) ownLocks(ctx context.Context, broker *client.Client) ([]string, error) {
	return c.lockWords(ctx, broker, broker.Identity().Agent)
}

// lockWords returns the fences and paths of an agent's locks, or of all agents' if it is empty. The
// paths are relative to the working folder.
func (c *cli) lockWords(ctx context.Context, broker *client.Client, agent string) ([]string, error) {
	page, err := broker.Locks().ListLocks(ctx, &pb.ListLocksRequest{Agent: agent, PageSize: maxPage})
	if err != nil {
		return nil, err
	}
	known, err := c.paths("")
	if err != nil {
		return nil, err
	}
	dir, err := c.env.dir()
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

// completeTokens completes a token's type and scope.
func (c *cli) completeTokens(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.words(cmd, func(ctx context.Context, broker *client.Client) ([]string, error) {
		request := &pb.ListTokensRequest{PageSize: maxPage}
		if len(args) == 1 {
			request.Type = args[0]
		}
		page, err := broker.As("").Tokens().ListTokens(ctx, request)
		var words []string
		for _, k := range page.GetTokens() {
			words = append(words, prompt.Either(len(args) == 0, k.GetType(), k.GetScope()))
		}
		slices.Sort(words)
		return slices.Compact(words), err
	})
}

// completeTokenPass completes a token's type and scope, and then an agent or a role.
func (c *cli) completeTokenPass(
	cmd *cobra.Command, args []string, toComplete string,
) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0, 1:
		return c.completeTokens(cmd, args, toComplete)
	case 2:
		return c.words(cmd, owners)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
