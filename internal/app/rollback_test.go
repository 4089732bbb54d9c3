package app_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// A play makes calls, one after the other, and records their answers. With torn, each call that has
// a request id is made twice: the first time everything that it does is rolled back, at the last
// statement.
type play struct {
	*apptest.Broker
	t      *testing.T
	torn   bool
	tears  int
	record []string
}

// tornID begins the request ids whose row the database refuses. The broker inserts that row last.
const tornID = "ffffffff"

func newPlay(t *testing.T, torn bool) *play {
	t.Helper()
	p := &play{Broker: apptest.Start(t, apptest.WithFakeClock()), t: t, torn: torn}
	testkit.Change(t, p.Dir(), `CREATE TRIGGER torn BEFORE INSERT ON requests WHEN substr(NEW.id, 1, 4) = x'`+tornID+`'
		BEGIN SELECT RAISE(ABORT, 'torn'); END`)
	return p
}

// call makes a call in the name of an agent and returns its answer.
func call[Answer any, P interface {
	*Answer
	proto.Message
}](p *play, agent, method string, request proto.Message) P {
	p.t.Helper()
	answer := P(new(Answer))
	if requestID(request) != nil {
		tear(p, agent, method, request, answer)
		request.ProtoReflect().Set(requestID(request), protoreflect.ValueOfString("0"+uuid.NewString()[1:]))
	}
	if err := p.invoke(agent, method, request, answer); err != nil {
		p.t.Fatalf("%s by %s: %v", method, agent, err)
	}
	p.note(agent+" "+method, answer)
	return answer
}

// tear makes a call that is rolled back, if the play is a torn one.
func tear(p *play, agent, method string, request, answer proto.Message) {
	p.t.Helper()
	if !p.torn {
		return
	}
	request.ProtoReflect().Set(requestID(request), protoreflect.ValueOfString(tornID+uuid.NewString()[8:]))
	if err := p.invoke(agent, method, request, answer); status.Code(err) != codes.Internal {
		p.t.Fatalf("%s by %s, torn: %v, want INTERNAL", method, agent, err)
	}
	p.tears++
}

func requestID(request proto.Message) protoreflect.FieldDescriptor {
	return request.ProtoReflect().Descriptor().Fields().ByName("request_id")
}

func (p *play) invoke(agent, method string, request, answer proto.Message) error {
	ctx, cancel := context.WithTimeout(p.t.Context(), apptest.Patience)
	defer cancel()
	return p.Conn(agent).Invoke(ctx, "/brokerd.v1."+method, request, answer)
}

// numbers are the parts of an answer that differ from run to run: revisions and what is made of
// them.
var numbers = regexp.MustCompile(`\b(\w*(?:revision|fence|ticket|message):\s*)\d+|\b((?:id|claim_ids?|acked|released|thread_id|in_reply_to):\s*)"[^"]*"`)

func (p *play) note(what string, answer proto.Message) {
	text := prototext.MarshalOptions{Multiline: true}.Format(answer)
	text = numbers.ReplaceAllString(text, "$1$2#")
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	p.record = append(p.record, what+"\n  "+strings.Join(lines, "\n  "))
}

// whole tears nothing until the returned function is called.
func (p *play) whole() (end func()) {
	torn := p.torn
	p.torn = false
	return func() { p.torn = torn }
}

func (p *play) messages() {
	t := p.t
	post := "MessageService/"
	send := func(from string, m *pb.Message) *pb.SendResult {
		t.Helper()
		return call[pb.SendMessagesResponse](p, from, post+"SendMessages",
			&pb.SendMessagesRequest{Messages: []*pb.Message{m}}).Results[0]
	}
	to := func(agent, kind string) *pb.Message {
		return &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: agent}}, Type: kind, Subject: kind}
	}
	claim := func(agent string) []*pb.ClaimedMessage {
		t.Helper()
		return call[pb.ClaimMessagesResponse](p, agent, post+"ClaimMessages",
			&pb.ClaimMessagesRequest{Max: 10}).Claims
	}
	// Who listens to a channel.
	news := &pb.Message{Target: &pb.Target{To: &pb.Target_Channel{Channel: "news"}}, Type: "note", Subject: "news"}
	call[pb.SubscribeChannelResponse](p, "b", "ChannelService/SubscribeChannel",
		&pb.SubscribeChannelRequest{Channel: "news"})
	send("a", news)
	call[pb.UnsubscribeChannelResponse](p, "b", "ChannelService/UnsubscribeChannel",
		&pb.UnsubscribeChannelRequest{Channel: "news"})
	send("a", news)
	call[pb.ConfigureChannelResponse](p, "", "ChannelService/ConfigureChannel",
		&pb.ConfigureChannelRequest{Channel: "news", DefaultTtl: durationpb.New(1e12)})
	send("a", news)
	// Claims, a consumer that waits, and the circuit breaker.
	got := claim("b")
	call[pb.AckMessagesResponse](p, "b", post+"AckMessages", &pb.AckMessagesRequest{Ids: []string{got[0].ClaimId}})
	claims := p.consumer("b")
	send("a", to("b", "work"))
	id := p.take(claims)
	call[pb.ExtendClaimsResponse](p, "b", post+"ExtendClaims",
		&pb.ExtendClaimsRequest{Extensions: []*pb.Extension{{ClaimId: id}}})
	call[pb.ReleaseClaimsResponse](p, "b", post+"ReleaseClaims", &pb.ReleaseClaimsRequest{Ids: []string{id}})
	id = p.take(claims)
	call[pb.ConfigureSessionResponse](p, "", "SessionService/ConfigureSession",
		&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{BreakerFailures: proto.Int32(1)}})
	call[pb.NackMessagesResponse](p, "b", post+"NackMessages",
		&pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: id, Error: "no", Delay: durationpb.New(0)}}})
	send("a", to("b", "behind-the-breaker"))
	call[pb.GetAgentResponse](p, "a", "AgentService/GetAgent", &pb.GetAgentRequest{Name: "b"})
	// A halt, and what it holds back.
	send("", to("c", "halt"))
	send("a", to("c", "held-back"))
	claim("c")
	send("", to("c", "resume"))
	claim("c")
	// A question, and one that a call waits with.
	asked := send("a", to("c", "question"))
	claim("c")
	call[pb.ReplyResponse](p, "c", post+"Reply",
		&pb.ReplyRequest{Id: asked.Id, Message: &pb.Message{Type: "answer", Subject: "yes"}, Ack: false})
	claim("a")
	answer, replied := &pb.AskResponse{}, make(chan error, 1)
	go func() {
		replied <- p.invoke("a", post+"Ask",
			&pb.AskRequest{Message: to("c", "question"), Wait: durationpb.New(time.Minute)}, answer)
	}()
	waits := call[pb.ClaimMessagesResponse](p, "c", post+"ClaimMessages",
		&pb.ClaimMessagesRequest{Consumer: "replier", Max: 1, Wait: durationpb.New(time.Minute)}).Claims
	call[pb.ReplyResponse](p, "c", post+"Reply",
		&pb.ReplyRequest{Id: waits[0].ClaimId, Message: &pb.Message{Type: "answer", Subject: "now"}, Ack: true})
	apptest.NoError(t, <-replied)
	p.note("the question that waits gets", answer)
	gone := send("a", to("c", "gone"))
	call[pb.CancelMessageResponse](p, "a", post+"CancelMessage", &pb.CancelMessageRequest{Id: gone.Id})
	claim("c")
}

// consumer opens a stream of claims that waits for work.
func (p *play) consumer(agent string) pb.MessageService_ClaimClient {
	p.t.Helper()
	stream, err := p.Actor("default", agent).Claim(p.t.Context())
	if err == nil {
		err = stream.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{MaxInFlight: 10}})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	apptest.NoError(p.t, err)
	return stream
}

// take waits for one claim, and for no more than one.
func (p *play) take(stream pb.MessageService_ClaimClient) string {
	p.t.Helper()
	for {
		frame, err := stream.Recv()
		apptest.NoError(p.t, err)
		if d := frame.GetDeliver(); d != nil {
			if len(d.Claims) != 1 {
				p.t.Fatalf("%d claims, want one", len(d.Claims))
			}
			p.note("the stream gets", d)
			return d.Claims[0].ClaimId
		}
	}
}

func (p *play) locks() {
	service := "LockService/"
	acquire := func(agent string, dry, keep bool, paths ...string) *pb.AcquireLocksResponse {
		p.t.Helper()
		r := &pb.AcquireLocksRequest{Paths: paths, DryRun: dry, KeepTicket: keep}
		if dry || keep { // it keeps no answer for its request id, so it cannot be torn
			defer p.whole()()
		}
		return call[pb.AcquireLocksResponse](p, agent, service+"AcquireLocks", r)
	}
	release := func(agent string, r *pb.ReleaseLocksRequest) {
		p.t.Helper()
		call[pb.ReleaseLocksResponse](p, agent, service+"ReleaseLocks", r)
	}
	list := func() { call[pb.ListLocksResponse](p, "a", service+"ListLocks", &pb.ListLocksRequest{}) }
	file := acquire("a", false, false, "src/a.go")
	acquire("b", true, false, "src/a.go")
	acquire("a", false, false, "lib/")
	acquire("b", true, false, "lib/x.go")
	call[pb.ExtendLocksResponse](p, "a", service+"ExtendLocks", &pb.ExtendLocksRequest{Fences: []int64{file.Fence}})
	acquire("b", false, true, "src/a.go", "lib/y.go")
	acquire("c", false, true, "src/a.go")
	release("b", &pb.ReleaseLocksRequest{Paths: []string{"lib/y.go"}}) // the ticket wants less
	list()
	release("a", &pb.ReleaseLocksRequest{Fences: []int64{file.Fence}}) // b's turn
	list()
	acquire("c", true, false, "src/a.go")
	acquire("b", false, false, "src/a.go")
	release("b", &pb.ReleaseLocksRequest{All: true}) // c's turn
	list()
	call[pb.ForceReleaseLocksResponse](p, "", service+"ForceReleaseLocks",
		&pb.ForceReleaseLocksRequest{Agent: "c", Reason: "test"})
	acquire("b", true, false, "src/a.go")
	acquire("b", true, false, "lib/x.go")
	release("a", &pb.ReleaseLocksRequest{All: true})
	acquire("b", true, false, "lib/x.go")
	list()
	end := p.whole()
	acquire("a", false, false, "src/whole.go")
	end()
	tear(p, "a", service+"ReleaseLocks", &pb.ReleaseLocksRequest{All: true}, &pb.ReleaseLocksResponse{})
	acquire("b", true, false, "src/whole.go")
}

func (p *play) tokens() {
	service, kind, scope := "TokenService/", "turn", "x"
	get := func() {
		call[pb.GetTokenResponse](p, "a", service+"GetToken", &pb.GetTokenRequest{Type: kind, Scope: scope})
	}
	acquire := func(agent string) {
		p.t.Helper()
		call[pb.AcquireTokenResponse](p, agent, service+"AcquireToken",
			&pb.AcquireTokenRequest{Type: kind, Scope: scope})
	}
	acquire("a")
	call[pb.ExtendTokenResponse](p, "a", service+"ExtendToken", &pb.ExtendTokenRequest{Type: kind, Scope: scope})
	get()
	call[pb.PassTokenResponse](p, "a", service+"PassToken",
		&pb.PassTokenRequest{Type: kind, Scope: scope, To: &pb.PassTokenRequest_Agent{Agent: "b"}})
	get()
	acquire("b")
	get()
	call[pb.ReleaseTokenResponse](p, "b", service+"ReleaseToken", &pb.ReleaseTokenRequest{Type: kind, Scope: scope})
	acquire("c")
	call[pb.RevokeTokenResponse](p, "", service+"RevokeToken",
		&pb.RevokeTokenRequest{Type: kind, Scope: scope, Reason: "test"})
	get()
}

func (p *play) state() {
	service := "StateService/"
	list := func() { call[pb.ListStateResponse](p, "a", service+"ListState", &pb.ListStateRequest{Values: true}) }
	value := &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "one"}}
	call[pb.PutStateResponse](p, "a", service+"PutState",
		&pb.PutStateRequest{Key: "k", Value: value, Own: proto.Bool(true)})
	call[pb.AppendStateResponse](p, "a", service+"AppendState", &pb.AppendStateRequest{Key: "doc", Text: "entry"})
	list()
	call[pb.DeleteStateResponse](p, "a", service+"DeleteState", &pb.DeleteStateRequest{Key: "k"})
	list()
}

// TestRollback_LeavesMemoryAsTheTablesSay makes the same calls in two brokers. In one of them each
// change is made and rolled back first, late. All answers must be the same.
func TestRollback_LeavesMemoryAsTheTablesSay(t *testing.T) {
	t.Parallel()
	var records [2][]string
	for i, torn := range []bool{false, true} {
		p := newPlay(t, torn)
		for _, agent := range []string{"a", "b", "c"} {
			call[pb.RegisterAgentResponse](p, agent, "AgentService/RegisterAgent",
				&pb.RegisterAgentRequest{Role: "builder", Lease: durationpb.New(apptest.LongLease)})
		}
		p.messages()
		p.locks()
		p.tokens()
		p.state()
		p.work()
		call[pb.DeregisterAgentResponse](p, "c", "AgentService/DeregisterAgent", &pb.DeregisterAgentRequest{})
		call[pb.ListAgentsResponse](p, "a", "AgentService/ListAgents", &pb.ListAgentsRequest{})
		if torn && p.tears < 40 {
			t.Errorf("only %d calls were torn", p.tears)
		}
		records[i] = p.record
	}
	if diff := cmp.Diff(records[0], records[1]); diff != "" {
		t.Errorf("answers after rollbacks differ (-without +with):\n%s", diff)
	}
}
