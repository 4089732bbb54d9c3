package votes_test

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a daemon with a clock that the test advances, in which agents send as fast as they like.
func start(t testing.TB) *apptest.Broker {
	t.Helper()
	b := apptest.Start(t, apptest.WithFakeClock())
	b.Root().Configure(&pb.SessionSettings{SendRate: new(0.0)})
	return b
}

// team registers agents.
func team(w *apptest.Broker, names ...string) []*apptest.Actor {
	w.Helper()
	team := make([]*apptest.Actor, len(names))
	for i, name := range names {
		team[i] = w.Agent(name, "builder")
	}
	return team
}

// open opens a vote on yes or no, unless the request says otherwise.
func open(a *apptest.Actor, in *pb.OpenVoteRequest) *pb.Vote {
	a.Helper()
	if in.GetTitle() == "" {
		in.Title = "Deploy?"
	}
	if in.GetOptions() == nil {
		in.Options = []string{"yes", "no"}
	}
	return apptest.Must(a, a.OpenVote, in).GetVote()
}

// cast casts a ballot and returns the vote after it.
func cast(a *apptest.Actor, v *pb.Vote, option string) *pb.Vote {
	a.Helper()
	return apptest.Must(a, a.CastVote, &pb.CastVoteRequest{Id: v.GetId(), Option: option}).GetVote()
}

func get(a *apptest.Actor, v *pb.Vote) *pb.GetVoteResponse {
	a.Helper()
	return apptest.Must(a, a.GetVote, &pb.GetVoteRequest{Id: v.GetId()})
}

// awaitEnd returns a vote once it is closed.
func awaitEnd(a *apptest.Actor, v *pb.Vote) *pb.Vote {
	a.Helper()
	out := apptest.Must(a, a.GetVote, &pb.GetVoteRequest{Id: v.GetId(), Wait: durationpb.New(time.Hour)})
	if out.GetVote().GetState() != pb.VoteState_VOTE_STATE_CLOSED {
		a.Fatalf("the wait ended with %v", out.GetVote())
	}
	return out.GetVote()
}

func deregister(a *apptest.Actor) {
	a.Helper()
	apptest.Must(a, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
}

// inbox returns the unread messages of a type.
func inbox(a *apptest.Actor, messageType string) []*pb.Message {
	a.Helper()
	stream, err := a.Receive(a.Ctx, &pb.ReceiveRequest{})
	apptest.NoError(a, err)
	var found []*pb.Message
	for {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found
		}
		apptest.NoError(a, err)
		for _, i := range page.GetItems() {
			if i.GetMessage().GetType() == messageType {
				found = append(found, i.GetMessage())
			}
		}
	}
}

// eventsOf returns the types of the events about a vote, in their order.
func eventsOf(w *apptest.Broker, v *pb.Vote) []string {
	w.Helper()
	var types []string
	for _, e := range w.Root().Events("vote.*") {
		if slices.Contains(e.GetRelated(), v.GetId()) {
			types = append(types, e.GetType())
		}
	}
	return types
}

// tally returns the ballots per option.
func tally(v *pb.Vote) map[string]int32 {
	counts := map[string]int32{}
	for _, t := range v.GetTally() {
		counts[t.GetOption()] = t.GetBallots()
	}
	return counts
}

func names(list ...string) *pb.OpenVoteRequest_Agents {
	return &pb.OpenVoteRequest_Agents{Agents: &pb.Names{Names: list}}
}
