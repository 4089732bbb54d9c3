package messagesrpc

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/admission"
	"brokerd/internal/backlog"
	"brokerd/internal/broker"
	"brokerd/internal/channels"
	"brokerd/internal/conversations"
	"brokerd/internal/deadletters"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/inbox"
	"brokerd/internal/msgid"
	"brokerd/internal/msgtype"
	"brokerd/internal/offers"
	"brokerd/internal/router"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
)

// Requests that are converted in the RPC itself go to a broker that knows no session: whatever gets past
// the checks is NOT_FOUND, so what is not refused as invalid was accepted.

func FuzzReceive(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.ReceiveRequest{}, func(_ context.Context, r *pb.ReceiveRequest) error { return s.messages.Receive(r, silent{}) },
		func(t *testing.T, r *pb.ReceiveRequest) {
			wantChannels(t, r.Filter.GetChannels())
			look := r.Order == pb.MessageOrder_MESSAGE_ORDER_PRIORITY || r.IncludeQueues
			if r.Cursor != "" && r.AfterRevision != 0 || r.KeepNotices && r.AutoAck ||
				look && (r.Follow || r.AutoAck || r.Cursor != "" || r.AfterRevision != 0) {
				t.Fatalf("accepted: %v", r)
			}
		})
}

func FuzzListMessages(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.ListMessagesRequest{}, unary(s.messages.ListMessages), func(t *testing.T, r *pb.ListMessagesRequest) {
		wantChannels(t, r.Filter.GetChannels())
		look := r.Order == pb.MessageOrder_MESSAGE_ORDER_PRIORITY || r.IncludeQueues
		wantIDs(t, r.Ids, false)
		if r.Box > pb.MessageBox_MESSAGE_BOX_INBOX && (look || len(r.Ids) > 0) || look && len(r.Ids) > 0 {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzClaimMessages(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.ClaimMessagesRequest{}, unary(s.messages.ClaimMessages), func(t *testing.T, r *pb.ClaimMessagesRequest) {
		wantCount(t, "max", int(r.Max), 0, 1000)
		wantCount(t, "lowest priority", int(r.LowestPriority), 0, 10)
		wantNames(t, "types", r.Types, 100)
		wantMailboxes(t, r.Mailboxes)
		wantIDs(t, r.Ids, false)
		wantNames(t, "senders", r.Senders, 100)
		for _, id := range []string{r.ThreadId, r.TaskId, r.CorrelationId} {
			wantCount(t, "id", len(id), 0, 128)
		}
		if r.ClaimFor != nil {
			wantDuration(t, "claim_for", r.ClaimFor.AsDuration(), r.ClaimFor, time.Second, 12*time.Hour, 0)
		}
		if r.Wait != nil {
			wantDuration(t, "wait", r.Wait.AsDuration(), r.Wait, 0, time.Hour, 0)
		}
	})
}

func FuzzAckMessages(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.AckMessagesRequest{}, unary(s.messages.AckMessages), func(t *testing.T, r *pb.AckMessagesRequest) { wantIDs(t, r.Ids, true) })
}

func FuzzReleaseClaims(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.ReleaseClaimsRequest{}, unary(s.messages.ReleaseClaims), func(t *testing.T, r *pb.ReleaseClaimsRequest) { wantIDs(t, r.Ids, true) })
}

func FuzzGetMessage(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.GetMessageRequest{}, unary(s.messages.GetMessage), func(t *testing.T, r *pb.GetMessageRequest) { wantIDs(t, []string{r.Id}, true) })
}

func FuzzCancelMessage(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.CancelMessageRequest{}, unary(s.messages.CancelMessage), func(t *testing.T, r *pb.CancelMessageRequest) {
		wantIDs(t, []string{r.Id}, false)
	})
}

func FuzzListDeadLetters(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.ListDeadLettersRequest{}, unary(s.messages.ListDeadLetters), func(t *testing.T, r *pb.ListDeadLettersRequest) {
		wantMailboxes(t, someName(r.Mailbox))
	})
}

func FuzzRedriveDeadLetters(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.RedriveDeadLettersRequest{}, unary(s.messages.RedriveDeadLetters),
		func(t *testing.T, r *pb.RedriveDeadLettersRequest) { wantDeadLetters(t, r) })
}

func FuzzPurgeDeadLetters(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.PurgeDeadLettersRequest{}, unary(s.messages.PurgeDeadLetters),
		func(t *testing.T, r *pb.PurgeDeadLettersRequest) { wantDeadLetters(t, r) })
}

func FuzzSubscribeChannel(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.SubscribeChannelRequest{}, unary(s.channels.SubscribeChannel), func(t *testing.T, r *pb.SubscribeChannelRequest) {
		wantChannel(t, r.Channel)
	})
}

func FuzzUnsubscribeChannel(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.UnsubscribeChannelRequest{}, unary(s.channels.UnsubscribeChannel), func(t *testing.T, r *pb.UnsubscribeChannelRequest) {
		wantChannel(t, r.Channel)
	})
}

func FuzzConfigureChannel(f *testing.F) {
	s := services(f)
	fuzz(f, &pb.ConfigureChannelRequest{}, unary(s.channels.ConfigureChannel), func(t *testing.T, r *pb.ConfigureChannelRequest) {
		wantChannel(t, r.Channel)
	})
}

// fuzz hands requests to an RPC; accepted looks at those that were not refused.
func fuzz[M proto.Message](f *testing.F, empty M, rpc func(context.Context, M) error, accepted func(*testing.T, M)) {
	ctx := identity.NewContext(f.Context(), identity.Caller{Access: identity.Agent, Session: "none", Agent: "a"})
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := decode(t, wire, proto.CloneOf(empty))
		err := rpc(ctx, r)
		switch fault.KindOf(err) {
		case fault.NotFound:
			accepted(t, r)
		default:
			if !refused(t, err) {
				t.Fatalf("answered without a session: %v", r)
			}
		}
	})
}

func unary[Q, A any](rpc func(context.Context, Q) (A, error)) func(context.Context, Q) error {
	return func(ctx context.Context, q Q) error {
		_, err := rpc(ctx, q)
		return err
	}
}

type bothServices struct {
	messages *Service
	channels *ChannelService
}

// services returns the services of a broker that knows no session.
func services(f *testing.F) bothServices {
	clock := clockwork.NewRealClock()
	st, err := store.Open(f.Context(), store.Options{Dir: f.TempDir(), Sync: store.SyncNormal, Clock: clock, Migrations: slices.Concat(idempotency.Migrations(), sessions.Migrations())})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := st.Close(); err != nil {
			f.Error(err)
		}
	})
	log := events.New(st, clock, zap.NewNop())
	nowhere := directory.New()
	b := broker.New(st, log, nowhere, clock, zap.NewNop())
	rest := backlog.New(st, nowhere, b, clock, zap.NewNop())
	sends := router.New(st, log, nowhere, b, rest, clock)
	control := admission.New(st, log, nowhere, b, clock, zap.NewNop())
	sends.UseAdmission(control, control, control)
	b.UseGates(control.Gates, control.Gates)
	reader := inbox.New(st, log, nowhere, b, control.Gates, clock)
	exchanges := conversations.New(st, log, nowhere, nil, b, sends, rest, clock, zap.NewNop())
	dead := deadletters.New(st, nowhere, b, sends, clock, zap.NewNop())
	offered := offers.New(st, log, b)
	registry := channels.New(st, log, nowhere, builtinTypes{}, b)
	messages := NewService( // no stream is answered
		b, sends, control, reader, exchanges, dead, offered, builtinTypes{}, nil, nil, nil, zap.NewNop())
	return bothServices{messages, NewChannelService(registry)}
}

// builtinTypes is a catalog in which no session registers a type.
type builtinTypes struct{}

func (builtinTypes) Types(context.Context, string) (*msgtype.Set, error) { return builtin, nil }

// silent is a stream on which nothing is sent.
type silent struct {
	grpc.ServerStreamingServer[pb.ReceiveResponse]
}

func (silent) Context() context.Context {
	return identity.NewContext(context.Background(), identity.Caller{Access: identity.Agent, Session: "none", Agent: "a"})
}

func wantChannels(t *testing.T, names []string) {
	t.Helper()
	for _, name := range names {
		if !aName.MatchString(strings.TrimPrefix(name, "event/")) {
			t.Fatalf("channel %q was accepted", name)
		}
	}
}

func wantIDs(t *testing.T, ids []string, claims bool) {
	t.Helper()
	wantCount(t, "ids", len(ids), 0, 1000)
	for _, id := range ids {
		ref, ok := msgid.ParseRef(id)
		if !ok || ref.Claim != 0 && !claims {
			t.Fatalf("%q was accepted", id)
		}
		wantRef(t, ref, id)
	}
}

// wantDeadLetters checks a choice of dead letters.
func wantDeadLetters(t *testing.T, r deadRequest) {
	t.Helper()
	wantIDs(t, r.GetIds(), false)
	wantMailboxes(t, someName(r.GetMailbox()))
	f := r.GetFilter()
	filtered := len(f.GetTypes())+len(f.GetSenders())+len(f.GetHolders())+len(f.GetError()) > 0 ||
		f.GetFromTime() != nil || f.GetToTime() != nil
	switch named := len(r.GetIds()) > 0; {
	case named && (filtered || r.GetAll() || r.GetPageToken() != ""):
		t.Fatalf("accepted: %v", r)
	case !named && r.GetMailbox() == "" && !filtered && !r.GetAll():
		t.Fatalf("accepted: %v", r)
	}
}

// someName returns the names that an optional field gives.
func someName(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

func wantChannel(t *testing.T, name string) {
	t.Helper()
	if kind, ok := strings.CutPrefix(name, "event/"); ok && (kind == "*" || anEvent.MatchString(kind)) {
		return
	}
	if !aName.MatchString(name) || name == "all" || name == "everyone" || name == "system" {
		t.Fatalf("channel %q was accepted", name)
	}
}
