package main

import (
	"context"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// completeFiles completes names of files, as shells do by themselves.
func completeFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// ownLocks asks for what the agent holds.
func ownLocks(ctx context.Context, broker *client.Client) ([]*pb.Lock, error) {
	page, err := broker.Locks().ListLocks(ctx, &pb.ListLocksRequest{Agent: broker.Identity().Agent, PageSize: maxPage})
	return page.GetLocks(), err
}

// completeFences completes the fences of the agent's locks.
func (c *cli) completeFences(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return c.words(cmd, func(ctx context.Context, broker *client.Client) ([]string, error) {
		locks, err := ownLocks(ctx, broker)
		var words []string
		for _, l := range locks {
			words = append(words, strconv.FormatInt(l.GetFence(), 10)+"\t"+listed(l.GetPaths()))
		}
		return words, err
	})
}

// completeHeldPaths completes the paths that the agent has locked.
func (c *cli) completeHeldPaths(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return c.words(cmd, func(ctx context.Context, broker *client.Client) ([]string, error) {
		locks, err := ownLocks(ctx, broker)
		var words []string
		for _, l := range locks {
			words = append(words, l.GetPaths()...)
		}
		return words, err
	})
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
			words = append(words, cond(len(args) == 0, k.GetType(), k.GetScope()))
		}
		slices.Sort(words)
		return slices.Compact(words), err
	})
}

// completeTokenPass completes a token's type and scope, and then an agent's name.
func (c *cli) completeTokenPass(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0, 1:
		return c.completeTokens(cmd, args, toComplete)
	case 2:
		return c.words(cmd, agentNames)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
