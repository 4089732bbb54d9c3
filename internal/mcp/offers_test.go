package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

// A watchedAgent is builder-1 at a real broker. around makes each call of the broker.
type watchedAgent struct {
	grpc.ClientConnInterface
	around func(ctx context.Context, args any, call func(context.Context) error) error
}

func (*watchedAgent) Join(context.Context, string) (string, error) { return "builder-1", nil }
func (*watchedAgent) News() string                                 { return "" }
func (*watchedAgent) Gone() bool                                   { return false }
func (*watchedAgent) Left(bool)                                    {}

func (a *watchedAgent) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	call := func(ctx context.Context) error {
		return a.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	}
	if a.around != nil {
		return a.around(ctx, args, call)
	}
	return call(ctx)
}

// A watched is a server of the tools with its client.
type watched struct {
	t       *testing.T
	b       *apptest.Broker
	agent   *watchedAgent
	session *sdk.ClientSession
	lead    pb.MessageServiceClient
	mine    pb.MessageServiceClient
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	b := apptest.Start(t)
	lead, builder := b.Registered("lead", ""), b.Registered("builder-1", "")
	agent := &watchedAgent{ClientConnInterface: builder}
	server := mcp.New(mcp.Options{
		Agent: func(context.Context) mcp.Agent { return agent }, Clock: clockwork.NewRealClock(), Mark: prompt.NewMark,
		Harness: "mcp-test", Defect: func(p any) { t.Errorf("panic: %v", p) },
	})
	here, there := sdk.NewInMemoryTransports()
	apptest.NoError(t, apptest.Err(server.Connect(t.Context(), here, nil)))
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), there, nil)
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = session.Close() }) // it ends with the test
	return &watched{t, b, agent, session, pb.NewMessageServiceClient(lead), pb.NewMessageServiceClient(builder)}
}

// send sends a message to builder-1 and returns its id.
func (w *watched) send(subject, body string) string {
	w.t.Helper()
	return apptest.Must(w.t, w.lead.SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder-1"}}, Type: "message", Subject: subject, Body: body,
	}}}).GetResults()[0].GetId()
}

// call calls a tool and returns its text.
func (w *watched) call(tool, args string) string {
	w.t.Helper()
	result, err := w.session.CallTool(w.t.Context(), &sdk.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	apptest.NoError(w.t, err)
	return result.Content[0].(*sdk.TextContent).Text
}

// offers returns the offers of a message, and whether it is read.
func (w *watched) offers(id string) (offers []*pb.Offer, read bool) {
	w.t.Helper()
	d := apptest.Must(w.t, w.lead.GetMessage, &pb.GetMessageRequest{Id: id}).GetDeliveries()[0]
	return d.GetOffers(), d.GetReadAt() != nil
}

func TestOffer_AResultThatTheClientDoesNotGetIsReturnedAndShownAgain(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	id := w.send("Look", "At the page")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	settled := make(chan struct{})
	w.agent.around = func(ctx context.Context, args any, call func(context.Context) error) error {
		err := call(ctx)
		switch args.(type) {
		case *pb.OfferMessagesRequest:
			cancel()
			<-ctx.Done()
		case *pb.SettleOffersRequest:
			close(settled)
		}
		return err
	}
	if _, err := w.session.CallTool(ctx, &sdk.CallToolParams{Name: "turn", Arguments: json.RawMessage(`{"read":"inbox"}`)}); err == nil {
		t.Error("the call is not cancelled")
	}
	<-settled
	w.agent.around = nil
	offers, read := w.offers(id)
	if len(offers) != 1 || offers[0].GetWhy() != "the client has not received the result" || read {
		t.Errorf("%v, read %t", offers, read)
	}
	w.call("team", `{}`)
	if _, read := w.offers(id); read {
		t.Error("a message is read whose result nobody has received")
	}
	if text := w.call("turn", `{"read":"inbox"}`); !strings.Contains(text, "At the page") {
		t.Errorf("%s", text)
	}
	w.call("team", `{}`)
	if _, read := w.offers(id); !read {
		t.Error("a message is unread after its result was received")
	}
}

func TestTurn_NoticesOfACallThatATaskHasEndedComeWithTheNextTurn(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	lead, mine := pb.NewTaskServiceClient(w.b.Conn("lead")), pb.NewTaskServiceClient(w.b.Conn("builder-1"))
	apptest.Must(t, mine.CreateTasks,
		&pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "declined", Title: "Look", Assignee: "lead"}}})
	w.agent.around = func(ctx context.Context, args any, call func(context.Context) error) error {
		if r, ok := args.(*pb.ClaimMessagesRequest); !ok || r.GetWait() == nil {
			return call(ctx)
		}
		_, err := lead.ReleaseTask(t.Context(), &pb.ReleaseTaskRequest{Id: "declined", Decline: true, Reason: "no time"})
		if err != nil {
			t.Error(err)
		}
		if err := call(context.WithoutCancel(ctx)); err != nil { // it offers the notice
			t.Error(err)
		}
		<-ctx.Done() // the task, which is builder-1's now, ends the call
		return status.FromContextError(ctx.Err()).Err()
	}
	if text := w.call("turn", `{"wait":50}`); !strings.Contains(text, "task declined") || strings.Contains(text, "no time") {
		t.Errorf("%s", text)
	}
	w.agent.around = nil
	if text := w.call("turn", `{}`); !strings.Contains(text, "no time") {
		t.Errorf("a notice is lost for the next turn: %s", text)
	}
}

func TestInbox_ShowsAllThatItOffers(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	ids := map[string]string{}
	for i := range 60 { // each line is longer in the result than in the message
		subject := fmt.Sprintf("Message %02d.", i)
		ids[subject] = w.send(subject, strings.Repeat("\x01", 350)+fmt.Sprintf("\nthe end of %02d.", i))
	}
	seen, results := map[string]bool{}, 0
	for ; len(seen) < len(ids) && results < 20; results++ {
		text := w.call("turn", `{"read":"inbox"}`)
		if strings.Contains(text, "left out") && strings.Contains(text, "bytes") {
			t.Fatalf("the result is cut: %.500s", text)
		}
		for subject := range ids {
			if strings.Contains(text, "Subject: "+subject) {
				seen[subject] = true
			}
		}
		w.call("settle", `{}`) // only continues
		for subject, id := range ids {
			if _, read := w.offers(id); read != seen[subject] {
				t.Errorf("%s: read %t, shown %t", subject, read, seen[subject])
			}
		}
	}
	if len(seen) < len(ids) || results < 2 {
		t.Errorf("%d messages in %d results", len(seen), results)
	}
}

func TestInbox_AMessageThatIsTooLongSaysWhereItsMiddleIs(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	id := w.send("Long", strings.Repeat("a line of a long text\n", 5000))
	w.send("Next", "")
	text := w.call("turn", `{"read":"inbox"}`)
	if !strings.Contains(text, " is left out; all of it: (in a shell) brokerctl message get ") ||
		!strings.Contains(text, "1 more new messages") || len(text) > 64<<10 {
		t.Errorf("%d bytes: %.200s ... %s", len(text), text, text[max(0, len(text)-500):])
	}
	w.call("team", `{}`)
	if _, read := w.offers(id); !read {
		t.Error("a message that was shown is unread")
	}
	if text := w.call("turn", `{"read":"inbox"}`); !strings.Contains(text, "Subject: Next") {
		t.Errorf("%.1000s", text)
	}
}

func TestInbox_CountsWhatIsOnItsWayElsewhere(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.send("Look", "")
	apptest.Must(t, w.mine.OfferMessages, &pb.OfferMessagesRequest{
		Way: pb.OfferWay_OFFER_WAY_TURN_END, Harness: "another", Mark: "mark-0001",
	})
	if text := w.call("turn", `{"read":"inbox"}`); !strings.HasPrefix(text, "On the way to another session, or to this one by a hook: 1 message;") {
		t.Errorf("%s", text)
	}
}
