package words

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// Kinds of values with the words that complete them.
var (
	Agent       = command.Kind{Name: "AGENT", Words: AgentNames}
	Channel     = command.Kind{Name: "CHANNEL", Words: ChannelNames}
	Mailbox     = command.Kind{Name: "MAILBOX", Words: MailboxNames}
	MessageID   = command.Kind{Name: "ID", Words: MessageIDWords}
	MessageType = command.Kind{Name: "TYPE", Words: messageTypes}
	Owner       = command.Kind{Name: "TEXT", Words: Owners, Fixed: []string{"everyone"}} // an agent, role:NAME or everyone
	Role        = command.Kind{Name: "ROLE", Words: RoleNames}
	Session     = command.Kind{Name: "SESSION", Words: SessionNames}
	Task        = command.Kind{Name: "TASK", Words: TaskWords()}
)

// AgentNames returns the names of the agents.
func AgentNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.As("").Agents().ListAgents(ctx, &pb.ListAgentsRequest{PageSize: command.MaxPage})
	return each.Of(page.GetAgents(), (*pb.Agent).GetName), err
}

// RoleNames returns the roles of the agents.
func RoleNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.As("").Agents().ListAgents(ctx, &pb.ListAgentsRequest{PageSize: 1})
	var words []string
	for _, r := range page.GetRoles() {
		if r.GetRole() != "" {
			words = append(words, r.GetRole())
		}
	}
	return words, err
}

// ChannelNames returns the names of the channels.
func ChannelNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.As("").Channels().ListChannels(ctx, &pb.ListChannelsRequest{PageSize: command.MaxPage})
	return each.Of(page.GetChannels(), (*pb.Channel).GetName), err
}

// SessionNames returns the names of the sessions.
func SessionNames(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Sessions().ListSessions(ctx, &pb.ListSessionsRequest{PageSize: command.MaxPage})
	return each.Of(page.GetSessions(), (*pb.Session).GetName), err
}

// Owners returns agents, and roles as role:NAME.
func Owners(ctx context.Context, broker *client.Client) ([]string, error) {
	words, err := AgentNames(ctx, broker)
	if err != nil {
		return nil, err
	}
	roles, err := RoleNames(ctx, broker)
	for _, name := range roles {
		words = append(words, "role:"+name)
	}
	return words, err
}

// MailboxNames returns agents, roles and channels.
func MailboxNames(ctx context.Context, broker *client.Client) ([]string, error) {
	words, err := Owners(ctx, broker)
	if err != nil {
		return nil, err
	}
	channels, err := ChannelNames(ctx, broker)
	for _, name := range channels {
		words = append(words, "channel:"+name)
	}
	return words, err
}

// ReceiverNames returns what MailboxNames does, and everyone.
func ReceiverNames(ctx context.Context, broker *client.Client) ([]string, error) {
	words, err := MailboxNames(ctx, broker)
	return append(words, "everyone"), err
}

// messageTypes returns the known types with their titles, and the types of the newest messages.
func messageTypes(ctx context.Context, broker *client.Client) ([]string, error) {
	types, err := listTypes(ctx, broker.As(""))
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

// MessageIDWords returns the revisions of the newest messages.
func MessageIDWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := newestMessages(ctx, broker)
	return each.Of(page.GetItems(), func(item *pb.InboxItem) string { return describe(item.GetMessage()) }), err
}

// describe returns a message's revision with a description.
func describe(m *pb.Message) string {
	return fmt.Sprintf("%d\t%s to %s: %s", m.GetRevision(),
		prompt.OneLine(m.GetSender()), prompt.OneLine(prompt.Receiver(m.GetTarget())), prompt.Clip(prompt.Summary(m), 60))
}

// ThreadWords returns the conversations of the newest messages: by name, or by the revision of a
// message.
func ThreadWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := newestMessages(ctx, broker)
	var words []string
	seen := map[string]bool{}
	for _, item := range page.GetItems() {
		m := item.GetMessage()
		switch {
		case seen[m.GetThreadId()]:
		case IsID(m.GetThreadId()):
			words = append(words, describe(m))
		default:
			words = append(words, m.GetThreadId()+"\t"+prompt.Clip(prompt.Summary(m), 60))
		}
		seen[m.GetThreadId()] = true
	}
	return words, err
}

// ClaimWords returns the ids of the agent's claims.
func ClaimWords(ctx context.Context, broker *client.Client) ([]string, error) {
	return inboxWords(ctx, broker, false, func(item *pb.InboxItem) string {
		if d := item.GetDelivery(); d.GetState() == pb.DeliveryState_DELIVERY_STATE_CLAIMED {
			return d.GetClaimId() + "\t" + prompt.Clip(prompt.Summary(item.GetMessage()), 60)
		}
		return ""
	})
}

// WaitingWords returns the revisions of the messages that the agent could claim.
func WaitingWords(ctx context.Context, broker *client.Client) ([]string, error) {
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

// DeadWords returns the revisions of dead letters.
func DeadWords(ctx context.Context, broker *client.Client) ([]string, error) {
	page, err := broker.Messages().ListDeadLetters(ctx, &pb.ListDeadLettersRequest{})
	return each.Of(page.GetItems(), func(item *pb.InboxItem) string {
		return strconv.FormatInt(item.GetMessage().GetRevision(), 10) + "\t" + item.GetDelivery().GetMailbox()
	}), err
}

// DecisionWords returns the completion of unfinished decisions of a kind: scopes, or ids without one.
func DecisionWords(kind pb.DecisionKind) command.WordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.Decisions().ListDecisions(ctx, &pb.ListDecisionsRequest{
			Kind: kind, States: UnfinishedDecisions, PageSize: command.MaxPage,
		})
		return each.Of(page.GetDecisions(), func(d *pb.Decision) string {
			return scopeOrID(d) + "\t" + prompt.OneLine(prompt.DecisionLine(d))
		}), err
	}
}

// TaskWords returns the ids of unfinished tasks.
func TaskWords(states ...pb.TaskState) command.WordList {
	return func(ctx context.Context, broker *client.Client) ([]string, error) {
		page, err := broker.Tasks().ListTasks(ctx, &pb.ListTasksRequest{States: states, PageSize: command.MaxPage})
		return DescribeTasks(page.GetTasks()), err
	}
}

// Unfinished are the states of tasks that may still be done without RetryTask.
var Unfinished = []pb.TaskState{
	pb.TaskState_TASK_STATE_WAITING, pb.TaskState_TASK_STATE_READY, pb.TaskState_TASK_STATE_CLAIMED,
	pb.TaskState_TASK_STATE_BLOCKED,
}

// UnfinishedDecisions are the states of decisions that still change.
var UnfinishedDecisions = []pb.DecisionState{
	pb.DecisionState_DECISION_STATE_OPEN, pb.DecisionState_DECISION_STATE_REVISING,
	pb.DecisionState_DECISION_STATE_ESCALATED,
}

// scopeOrID names a decision in a command: by its scope if that is no id, or by its id.
func scopeOrID(d *pb.Decision) string {
	if scope := d.GetScope(); scope != "" && !DecisionIDs.MatchString(scope) {
		return scope
	}
	return d.GetId()
}

// IsID reports whether a word has the form of a revision, a claim id or a message's id.
func IsID(s string) bool {
	if _, err := uuid.Parse(s); err == nil {
		return true
	}
	revision, number, isClaim := strings.Cut(s, ".")
	_, err := strconv.ParseUint(revision, 10, 63)
	if err == nil && isClaim {
		_, err = strconv.ParseUint(number, 10, 63)
	}
	return err == nil
}

// listTypes returns all types.
func listTypes(ctx context.Context, broker *client.Client) ([]*pb.MessageType, error) {
	return command.Pages(0, func(size int32, token string) ([]*pb.MessageType, string, error) {
		page, err := broker.Catalog().ListMessageTypes(ctx, &pb.ListMessageTypesRequest{PageSize: size, PageToken: token})
		return page.GetTypes(), page.GetNextPageToken(), err
	})
}

// TypeNames returns the names of types with their titles.
func TypeNames(ctx context.Context, broker *client.Client) ([]string, error) {
	types, err := listTypes(ctx, broker.As(""))
	return each.Of(types, func(t *pb.MessageType) string { return t.GetName() + "\t" + t.GetTitle() }), err
}

// TypeFamilies returns the families of the types, each once.
func TypeFamilies(ctx context.Context, broker *client.Client) ([]string, error) {
	types, err := listTypes(ctx, broker.As(""))
	words := each.Of(types, (*pb.MessageType).GetFamily)
	slices.Sort(words)
	return slices.Compact(words), err
}

// DescribeTasks returns the ids of tasks with their titles.
func DescribeTasks(tasks []*pb.Task) []string {
	return each.Of(tasks, func(t *pb.Task) string {
		return fmt.Sprintf("%s\t%s: %s", t.GetId(), prompt.Enum(t.GetState()), prompt.Clip(t.GetTitle(), 60))
	})
}

// DecisionIDs are texts that name a decision by its id, not by its scope.
var DecisionIDs = regexp.MustCompile(`^(d-)?[0-9]+$`)
