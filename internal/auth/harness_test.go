package auth_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	observer = pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER
	agent    = pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT
	operator = pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR
)

// A kit is a broker with an operator's client.
type kit struct {
	*apptest.Broker
	t   *testing.T
	ctx context.Context
}

func newKit(t *testing.T, options ...apptest.Option) *kit {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*apptest.Patience)
	t.Cleanup(cancel)
	return &kit{apptest.Start(t, options...), t, ctx}
}

func (k *kit) credentials() pb.CredentialServiceClient {
	return pb.NewCredentialServiceClient(k.Operator())
}

// forAgent issues a credential for an agent of the session default.
func (k *kit) forAgent(name string) (*pb.Credential, string) {
	k.t.Helper()
	return k.Issue(&pb.IssueCredentialRequest{Access: agent, Session: "default", Agent: name})
}

func (k *kit) revoke(id, reason string) *pb.Credential {
	k.t.Helper()
	out, err := k.credentials().RevokeCredential(k.ctx, &pb.RevokeCredentialRequest{Id: id, Reason: reason})
	if err != nil {
		k.t.Fatal(err)
	}
	return out.GetCredential()
}

// listed returns a credential as the list shows it.
func (k *kit) listed(id string) *pb.Credential {
	k.t.Helper()
	out, err := k.credentials().ListCredentials(k.ctx, &pb.ListCredentialsRequest{PageSize: 1000})
	if err != nil {
		k.t.Fatal(err)
	}
	i := slices.IndexFunc(out.GetCredentials(), func(c *pb.Credential) bool { return c.GetId() == id })
	if i < 0 {
		k.t.Fatalf("%s is not in the list", id)
	}
	return out.GetCredentials()[i]
}

// see makes a call that every credential permits.
func (k *kit) see(conn *grpc.ClientConn) error {
	_, err := pb.NewSessionServiceClient(conn).GetSession(k.ctx, &pb.GetSessionRequest{})
	return err
}

// follow subscribes to the events of a type, from the oldest on.
func (k *kit) follow(eventType string) grpc.ServerStreamingClient[pb.SubscribeEventsResponse] {
	k.t.Helper()
	stream, err := pb.NewEventServiceClient(k.Operator()).SubscribeEvents(k.ctx,
		&pb.SubscribeEventsRequest{Filter: &pb.EventFilter{Types: []string{eventType}}, AfterRevision: new(int64)})
	if err != nil {
		k.t.Fatal(err)
	}
	return stream
}

// next waits for the next event of a subscription, and returns its details.
func (k *kit) next(stream grpc.ServerStreamingClient[pb.SubscribeEventsResponse]) (*pb.Event, map[string]any) {
	k.t.Helper()
	for {
		out, err := stream.Recv()
		if err != nil {
			k.t.Fatal(err)
		}
		if len(out.GetEvents()) > 1 {
			k.t.Fatalf("%d events at once, want 1: %v", len(out.GetEvents()), out.GetEvents())
		}
		if len(out.GetEvents()) == 1 {
			details := map[string]any{}
			if text := out.GetEvents()[0].GetDetails(); text != "" {
				if err := json.Unmarshal([]byte(text), &details); err != nil {
					k.t.Fatal(err)
				}
			}
			return out.GetEvents()[0], details
		}
	}
}

// expect checks the code and the reason of an error.
func expect(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Errorf("%v %s, want %v %s: %v", status.Code(err), testkit.Reason(err), code, reason, err)
	}
}
