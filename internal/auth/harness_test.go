package auth_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
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
	ctx context.Context
}

func newKit(t *testing.T, options ...apptest.Option) *kit {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*apptest.Patience)
	t.Cleanup(cancel)
	return &kit{apptest.Start(t, options...), ctx}
}

// forAgent issues a credential for an agent of the session default.
func (k *kit) forAgent(name string) (*pb.Credential, string) {
	k.Helper()
	return k.Issue(&pb.IssueCredentialRequest{Access: agent, Session: "default", Agent: name})
}

func (k *kit) revoke(id, reason string) *pb.Credential {
	k.Helper()
	return apptest.Must(k, k.Root().RevokeCredential, &pb.RevokeCredentialRequest{Id: id, Reason: reason}).Credential
}

// listed returns a credential as the list shows it.
func (k *kit) listed(id string) *pb.Credential {
	k.Helper()
	out := apptest.Must(k, k.Root().ListCredentials, &pb.ListCredentialsRequest{PageSize: 1000})
	i := slices.IndexFunc(out.GetCredentials(), func(c *pb.Credential) bool { return c.GetId() == id })
	if i < 0 {
		k.Fatalf("%s is not in the list", id)
	}
	return out.GetCredentials()[i]
}

// see makes a call that every credential permits.
func (k *kit) see(conn *grpc.ClientConn) error {
	return apptest.Err(pb.NewSessionServiceClient(conn).GetSession(k.ctx, &pb.GetSessionRequest{}))
}

// follow subscribes to the events of a type, from the oldest on.
func (k *kit) follow(eventType string) grpc.ServerStreamingClient[pb.SubscribeEventsResponse] {
	k.Helper()
	stream, err := k.Root().SubscribeEvents(k.ctx,
		&pb.SubscribeEventsRequest{Filter: &pb.EventFilter{Types: []string{eventType}}, AfterRevision: new(int64)})
	apptest.NoError(k, err)
	return stream
}

// next waits for the next event of a subscription, and returns its details.
func (k *kit) next(stream grpc.ServerStreamingClient[pb.SubscribeEventsResponse]) (*pb.Event, map[string]any) {
	k.Helper()
	for {
		out, err := stream.Recv()
		apptest.NoError(k, err)
		if len(out.GetEvents()) > 1 {
			k.Fatalf("%d events at once, want 1: %v", len(out.GetEvents()), out.GetEvents())
		}
		if len(out.GetEvents()) == 1 {
			details := map[string]any{}
			if text := out.GetEvents()[0].GetDetails(); text != "" {
				apptest.NoError(k, json.Unmarshal([]byte(text), &details))
			}
			return out.GetEvents()[0], details
		}
	}
}
