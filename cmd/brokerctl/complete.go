package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// completeTimeout bounds the wait of a shell; if the broker does not answer by then, there are no
// completions.
const completeTimeout = time.Second

// A wordList asks the broker for words to complete, each alone or with a tab and a description.
type wordList func(context.Context, *client.Client) ([]string, error)

// words returns the words of a list.
func (c *cli) words(cmd *cobra.Command, list wordList) ([]string, cobra.ShellCompDirective) {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	c.found = nil // cobra parses the flags of the command line only after it has started its own command for completions
	broker, err := c.connect(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	words, err := list(ctx, broker)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}

// completeArgs completes the arguments of a command, each from the list of its place. The last list
// also completes all arguments after it if there are to be more.
func (c *cli) completeArgs(more bool, lists ...wordList) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		at := len(args)
		if more {
			at = min(at, len(lists)-1)
		}
		if at >= len(lists) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.words(cmd, lists[at])
	}
}

// completeFlags gives each flag without a completion the one that its name stands for.
func (c *cli) completeFlags(root *cobra.Command) {
	lists := map[string]wordList{
		"agent": agentNames, "owner": agentNames, "elector": agentNames, "from": agentNames, "source": agentNames, "subscriber": agentNames,
		"creator": agentNames, "assignee": agentNames, "completed": agentNames, "task": taskWords(),
		"parent": taskWords(unfinished...), "depends-on": taskWords(unfinished...),
		"role": roleNames, "source-role": roleNames, "director": roleNames, "escalate-to": roleNames,
		"session": sessionNames, "channel": channelNames, "mailbox": mailboxNames, "type": messageTypes,
		"reply-to": messageIDWords, "id": messageIDWords,
	}
	fixed := map[string][]string{
		"priority": {"low", "normal", "high", "critical"}, "lowest-priority": {"low", "normal", "high", "critical"},
		"namespace": {"default", "global"}, "since": {"10m", "1h", "1d"},
	}
	files := map[string]cobra.ShellCompDirective{
		"file": cobra.ShellCompDirectiveDefault, "last-file": cobra.ShellCompDirectiveDefault,
		"worktree": cobra.ShellCompDirectiveFilterDirs, "dir": cobra.ShellCompDirectiveFilterDirs,
	}
	for _, cmd := range allCommands(root) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if _, has := cmd.GetFlagCompletionFunc(f.Name); has || f.Value.Type() == "bool" {
				return
			}
			complete := func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				if list := lists[f.Name]; list != nil {
					return c.words(cmd, list)
				}
				if directive, ok := files[f.Name]; ok {
					return nil, directive
				}
				return fixed[f.Name], cobra.ShellCompDirectiveNoFileComp
			}
			must(cmd.RegisterFlagCompletionFunc(f.Name, complete))
		})
	}
}

func agentNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.As("").Agents().ListAgents(ctx, &pb.ListAgentsRequest{PageSize: maxPage})
	var words []string
	for _, a := range page.GetAgents() {
		words = append(words, a.GetName())
	}
	return words, err
}

func roleNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.As("").Agents().ListAgents(ctx, &pb.ListAgentsRequest{PageSize: 1})
	var words []string
	for _, r := range page.GetRoles() {
		if r.GetRole() != "" {
			words = append(words, r.GetRole())
		}
	}
	return words, err
}

func channelNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.As("").Channels().ListChannels(ctx, &pb.ListChannelsRequest{PageSize: maxPage})
	var words []string
	for _, ch := range page.GetChannels() {
		words = append(words, ch.GetName())
	}
	return words, err
}

func sessionNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Sessions().ListSessions(ctx, &pb.ListSessionsRequest{PageSize: maxPage})
	var words []string
	for _, s := range page.GetSessions() {
		words = append(words, s.GetName())
	}
	return words, err
}

// owners returns agents, and roles as role:NAME.
func owners(ctx context.Context, broker *client.Client) ([]string, error) {
	words, err := agentNames(ctx, broker)
	if err != nil {
		return nil, err
	}
	roles, err := roleNames(ctx, broker)
	for _, name := range roles {
		words = append(words, "role:"+name)
	}
	return words, err
}

// mailboxNames returns agents, roles and channels.
func mailboxNames(ctx context.Context, broker *client.Client) ([]string, error) {
	words, err := owners(ctx, broker)
	if err != nil {
		return nil, err
	}
	channels, err := channelNames(ctx, broker)
	for _, name := range channels {
		words = append(words, "channel:"+name)
	}
	return words, err
}

func receiverNames(ctx context.Context, broker *client.Client) ([]string, error) {
	words, err := mailboxNames(ctx, broker)
	return append(words, "everyone"), err
}

// messageTypes returns the known types with their titles, and the types of the newest messages.
func messageTypes(ctx context.Context, broker *client.Client) ([]string, error) {
	types, err := listTypes(ctx, broker.As(""), &pb.ListMessageTypesRequest{}, 0)
	if err != nil {
		return nil, err
	}
	titles := map[string]string{}
	for _, t := range types {
		titles[t.GetName()] = "\t" + t.GetTitle()
	}
	page, err := newestMessages(ctx, broker)
	for _, item := range page.GetItems() {
		if name := item.GetMessage().GetType(); titles[name] == "" {
			titles[name] = ""
		}
	}
	var words []string
	for name, title := range titles {
		words = append(words, name+title)
	}
	slices.Sort(words)
	return words, err
}

func newestMessages(ctx context.Context, broker *client.Client) (*pb.ListMessagesResponse, error) {
	request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, NewestFirst: true}
	return broker.Messages().ListMessages(ctx, request)
}

// messageIDWords returns the revisions of the newest messages.
func messageIDWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := newestMessages(ctx, broker)
	var words []string
	for _, item := range page.GetItems() {
		words = append(words, describe(item.GetMessage()))
	}
	return words, err
}

// describe returns a message's revision with a description.
func describe(m *pb.Message) string {
	return fmt.Sprintf("%d\t%s to %s: %s", m.GetRevision(),
		prompt.OneLine(m.GetSender()), prompt.OneLine(prompt.Receiver(m.GetTarget())), prompt.Clip(prompt.Summary(m), 60))
}

// threadWords returns the conversations of the newest messages: by name, or by the revision of a
// message.
func threadWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := newestMessages(ctx, broker)
	var words []string
	seen := map[string]bool{}
	for _, item := range page.GetItems() {
		m := item.GetMessage()
		switch {
		case seen[m.GetThreadId()]:
		case isID(m.GetThreadId()):
			words = append(words, describe(m))
		default:
			words = append(words, m.GetThreadId()+"\t"+prompt.Clip(prompt.Summary(m), 60))
		}
		seen[m.GetThreadId()] = true
	}
	return words, err
}

// claimWords returns the ids of the agent's claims.
func claimWords(ctx context.Context, broker *client.Client) ([]string, error) {
	return inboxWords(ctx, broker, false, func(item *pb.InboxItem) string {
		if d := item.GetDelivery(); d.GetState() == pb.DeliveryState_DELIVERY_STATE_CLAIMED {
			return d.GetClaimId() + "\t" + prompt.Clip(prompt.Summary(item.GetMessage()), 60)
		}
		return ""
	})
}

// waitingWords returns the revisions of the messages that the agent could claim.
func waitingWords(ctx context.Context, broker *client.Client) ([]string, error) {
	return inboxWords(ctx, broker, true, func(item *pb.InboxItem) string {
		if item.GetDelivery().GetState() == pb.DeliveryState_DELIVERY_STATE_PENDING {
			return describe(item.GetMessage())
		}
		return ""
	})
}

// inboxWords returns a word for each unfinished message of the agent for which there is one.
func inboxWords(
	ctx context.Context, broker *client.Client, queues bool, word func(*pb.InboxItem) string,
) ([]string, error) {
	request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX, IncludeQueues: queues}
	page, err := broker.Messages().ListMessages(ctx, request)
	var words []string
	for _, item := range page.GetItems() {
		if w := word(item); w != "" {
			words = append(words, w)
		}
	}
	return words, err
}

// deadWords returns the revisions of dead letters.
func deadWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Messages().ListDeadLetters(ctx, &pb.ListDeadLettersRequest{})
	var words []string
	for _, item := range page.GetItems() {
		words = append(words, strconv.FormatInt(item.GetMessage().GetRevision(), 10)+"\t"+item.GetDelivery().GetMailbox())
	}
	return words, err
}

// decisionWords returns the completion of unfinished decisions of a kind: scopes, or ids without one.
func decisionWords(kind pb.DecisionKind) wordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.Decisions().ListDecisions(ctx, &pb.ListDecisionsRequest{Kind: kind, States: unfinishedDecisions, PageSize: maxPage})
		var words []string
		for _, d := range page.GetDecisions() {
			words = append(words, scopeOrID(d)+"\t"+prompt.OneLine(prompt.DecisionLine(d)))
		}
		return words, err
	}
}

// completeResend completes a message and then its recipients.
func (c *cli) completeResend(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return c.words(cmd, messageIDWords)
	}
	return c.words(cmd, func(ctx context.Context, broker *client.Client) ([]string, error) {
		answer, err := broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: args[0]})
		var words []string
		for _, d := range answer.GetDeliveries() {
			words = append(words, d.GetMailbox())
		}
		return words, err
	})
}
