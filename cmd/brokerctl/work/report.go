package work

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// ReportCommand is brokerctl report.
var ReportCommand = command.Procedure[command.None]{
	Page: command.Page{
		Use:   "report",
		Short: "Show the session as a page of Markdown",
		Long: `Show the session as a page of Markdown: agents with their activity, tasks, open
decisions, blockers with their times, handoffs, votes, and recent decisions. Of
each kind, unfinished work and then the newest are shown.`,
		Example: "  brokerctl report > plan.md",
	},
	Options: []command.Option{command.Limit},
	Run: func(g *command.Given, _ command.None) error {
		limit := g.Int("limit")
		if limit < 0 {
			return problem.Usagef("--limit %d: it must not be negative; 0 = all", limit)
		}
		broker, err := g.Connect(g.Cmd.Context())
		if err != nil {
			return err
		}
		r, err := newReport(g.Cmd.Context(), broker, limit)
		if err != nil {
			return err
		}
		page, err := r.json()
		if err != nil {
			return err
		}
		var text strings.Builder
		r.Write(g.Caller, &text)
		return g.ShowValue(g.Cmd, page, strings.TrimRight(text.String(), "\n"))
	},
}

// A Report has the facts of the page.
type Report struct {
	Session       *pb.Session
	Agents        ReportPart[*pb.Agent]
	Tasks         ReportPart[*pb.Task]
	Decisions     ReportPart[*pb.Decision] // unfinished
	Blockers      ReportPart[*pb.Blocker]
	Handoffs      ReportPart[*pb.Handoff]
	Votes         ReportPart[*pb.Vote]
	Decided       ReportPart[*pb.Decision]
	Announcements []*pb.Message
}

// A ReportPart has the items of one kind that the page shows, in the order of their creation.
type ReportPart[T proto.Message] struct {
	Items   []T
	Omitted int // beyond the limit
}

// Choose returns a part of all items of a kind: the unfinished ones and then the newest, up to a
// limit; 0 = all.
func Choose[T proto.Message](
	all []T, limit int, unfinished func(T) bool, at func(T) *timestamppb.Timestamp,
) ReportPart[T] {
	byTime := func(a, b T) int { return at(a).AsTime().Compare(at(b).AsTime()) }
	slices.SortStableFunc(all, func(a, b T) int {
		switch open := unfinished(a); {
		case open == unfinished(b):
			return byTime(b, a)
		case open:
			return -1
		default:
			return 1
		}
	})
	shown := len(all)
	if limit > 0 {
		shown = min(shown, limit)
	}
	s := ReportPart[T]{all[:shown], len(all) - shown}
	slices.SortStableFunc(s.Items, byTime)
	return s
}

// newReport reads the facts. Each list is read at its own moment.
func newReport(ctx context.Context, broker *client.Client, limit int) (*Report, error) {
	session, err := broker.Sessions().GetSession(ctx, &pb.GetSessionRequest{})
	if err != nil {
		return nil, err
	}
	agents, err := command.Pages(0, func(size int32, token string) ([]*pb.Agent, string, error) {
		page, err := broker.Agents().ListAgents(ctx, &pb.ListAgentsRequest{PageSize: size, PageToken: token})
		return page.GetAgents(), page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	tasks, err := command.Pages(0, func(size int32, token string) ([]*pb.Task, string, error) {
		page, err := broker.Tasks().ListTasks(ctx, &pb.ListTasksRequest{PageSize: size, PageToken: token})
		return page.GetTasks(), page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	decisions, err := command.Pages(0, func(size int32, token string) ([]*pb.Decision, string, error) {
		page, err := broker.Decisions().ListDecisions(ctx, &pb.ListDecisionsRequest{PageSize: size, PageToken: token})
		return page.GetDecisions(), page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	blockers, err := command.Pages(0, func(size int32, token string) ([]*pb.Blocker, string, error) {
		page, err := broker.Blockers().ListBlockers(ctx, &pb.ListBlockersRequest{PageSize: size, PageToken: token})
		return page.GetBlockers(), page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	handoffs, err := command.Pages(0, func(size int32, token string) ([]*pb.Handoff, string, error) {
		page, err := broker.Handoffs().ListHandoffs(ctx, &pb.ListHandoffsRequest{PageSize: size, PageToken: token})
		return page.GetHandoffs(), page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	votes, err := command.Pages(0, func(size int32, token string) ([]*pb.Vote, string, error) {
		page, err := broker.Votes().ListVotes(ctx, &pb.ListVotesRequest{PageSize: size, PageToken: token})
		return page.GetVotes(), page.GetNextPageToken(), err
	})
	if err != nil {
		return nil, err
	}
	announcements, err := announcements(ctx, broker, limit)
	if err != nil {
		return nil, err
	}
	const final = pb.DecisionState_DECISION_STATE_DECIDED
	open := slices.DeleteFunc(slices.Clone(decisions), func(d *pb.Decision) bool { return d.GetState() >= final })
	decided := slices.DeleteFunc(decisions, func(d *pb.Decision) bool { return d.GetState() != final })
	return &Report{
		Session: session.GetSession(),
		Agents:  Choose(agents, limit, func(a *pb.Agent) bool { return a.GetFailedAt() == nil }, (*pb.Agent).GetRegisteredAt),
		Tasks: Choose(tasks, limit, func(t *pb.Task) bool { return t.GetState() < pb.TaskState_TASK_STATE_DONE },
			(*pb.Task).GetCreatedAt),
		Decisions: Choose(open, limit, func(*pb.Decision) bool { return true }, (*pb.Decision).GetOpenedAt),
		Blockers: Choose(blockers, limit, func(b *pb.Blocker) bool { return b.GetResolvedAt() == nil },
			(*pb.Blocker).GetRaisedAt),
		Handoffs: Choose(handoffs, limit, func(h *pb.Handoff) bool { return h.GetSettledAt() == nil },
			(*pb.Handoff).GetCreatedAt),
		Votes:   Choose(votes, limit, func(v *pb.Vote) bool { return v.GetClosedAt() == nil }, (*pb.Vote).GetOpenedAt),
		Decided: Choose(decided, limit, func(*pb.Decision) bool { return false }, (*pb.Decision).GetChangedAt),

		Announcements: announcements,
	}, nil
}

// announcements returns the newest decisions that agents and operators have announced. Those of the
// broker itself are outcomes of votes, which the page has anyway.
func announcements(ctx context.Context, broker *client.Client, limit int) ([]*pb.Message, error) {
	request := &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, NewestFirst: true,
		Filter: &pb.MessageFilter{Types: []string{"decision_announcement"}},
	}
	items, err := command.Pages(0, func(size int32, token string) ([]*pb.InboxItem, string, error) {
		request.PageSize, request.PageToken = size, token
		page, err := broker.Messages().ListMessages(ctx, request)
		return page.GetItems(), page.GetNextPageToken(), err
	})
	var found []*pb.Message
	for _, i := range items {
		m := i.GetMessage()
		ofVote := m.GetSender() == "system" && strings.Contains(m.GetPayload(), `"vote_id"`)
		if !ofVote && (limit == 0 || len(found) < limit) {
			found = append(found, m)
		}
	}
	slices.Reverse(found)
	return found, err
}

// SessionPage is a report as JSON: the objects of the API.
type SessionPage struct {
	Session       json.RawMessage   `json:"session"`
	Agents        []json.RawMessage `json:"agents"`
	Tasks         []json.RawMessage `json:"tasks"`
	OpenDecisions []json.RawMessage `json:"open_decisions"`
	Blockers      []json.RawMessage `json:"blockers"`
	Handoffs      []json.RawMessage `json:"handoffs"`
	Votes         []json.RawMessage `json:"votes"`
	Decided       []json.RawMessage `json:"decided"`       // decisions with a verdict
	Announcements []json.RawMessage `json:"announcements"` // messages
	Omitted       int               `json:"omitted"`       // items beyond --limit
}

func (r *Report) json() (SessionPage, error) {
	var err error
	page := SessionPage{
		Agents: objects(r.Agents.Items, &err), Tasks: objects(r.Tasks.Items, &err),
		OpenDecisions: objects(r.Decisions.Items, &err), Blockers: objects(r.Blockers.Items, &err),
		Handoffs: objects(r.Handoffs.Items, &err), Votes: objects(r.Votes.Items, &err),
		Decided: objects(r.Decided.Items, &err), Announcements: objects(r.Announcements, &err),
		Session: objects([]*pb.Session{r.Session}, &err)[0],
		Omitted: r.Agents.Omitted + r.Tasks.Omitted + r.Decisions.Omitted + r.Blockers.Omitted + r.Handoffs.Omitted +
			r.Votes.Omitted + r.Decided.Omitted,
	}
	return page, err
}

// objects writes messages of the API as JSON. It adds an error to the one that err points to.
func objects[T proto.Message](items []T, err *error) []json.RawMessage {
	list := make([]json.RawMessage, len(items))
	for i, item := range items {
		var b bytes.Buffer
		*err = errors.Join(*err, output.WriteJSON(&b, item))
		list[i] = bytes.TrimSpace(b.Bytes())
	}
	return list
}

// Write writes the page.
func (r *Report) Write(c *command.Caller, w io.Writer) {
	fmt.Fprintf(w, "# Session %s\n\n", inMarkdown(r.Session.GetName()))
	fmt.Fprintf(w, "As of %s.", c.Env.Now().UTC().Format(time.RFC3339))
	if text := r.Session.GetDescription(); text != "" {
		fmt.Fprintf(w, " %s", inMarkdown(text))
	}
	if at := r.Session.GetClosedAt(); at != nil {
		fmt.Fprintf(w, " The session was closed %s.", c.When(at))
	}
	fmt.Fprintln(w)
	r.writeAgents(c, w)
	r.writeTasks(c, w)
	r.writeDecisions(c, w)
	r.writeBlockers(c, w)
	r.writeHandoffs(c, w)
	r.writeVotes(c, w)
	r.writeDecided(c, w)
}

// heading begins a part of the page; none says that it has nothing.
func heading(w io.Writer, title string, items int, none string) {
	fmt.Fprintf(w, "\n## %s\n\n", title)
	if items == 0 {
		fmt.Fprintln(w, none)
	}
}

// more says how many items a part does not show.
func more(w io.Writer, n int, noun string) {
	if n > 0 {
		fmt.Fprintf(w, "\n%s more.\n", prompt.Count(n, noun))
	}
}
