package app_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// A post is the outcome of a request over HTTP.
type post struct {
	status int
	reason string
}

// request makes a request over TCP, with a credential unless it is empty.
func request(t *testing.T, b *apptest.Broker, method, path, body, secret string) (got post) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+b.TCP()+path, strings.NewReader(body))
	apptest.NoError(t, err)
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	out, err := http.DefaultClient.Do(r)
	apptest.NoError(t, err)
	defer func() { _ = out.Body.Close() }()
	var answer struct{ Error struct{ Reason string } }
	if out.StatusCode != http.StatusOK {
		if err := json.NewDecoder(out.Body).Decode(&answer); err != nil {
			t.Errorf("%s %s: %s: %v", method, path, out.Status, err)
		}
	}
	return post{out.StatusCode, answer.Error.Reason}
}

// routes returns the routes and the paths of /v1/call that the description of the API has, by the RPC
// that they reach.
func routes(t *testing.T, b *apptest.Broker) map[string][]string {
	t.Helper()
	out, err := http.Get("http://" + b.TCP() + "/v1/openapi.json")
	apptest.NoError(t, err)
	defer func() { _ = out.Body.Close() }()
	var description struct {
		Paths map[string]map[string]struct {
			RPC string `json:"x-rpc"`
		}
	}
	apptest.NoError(t, json.NewDecoder(out.Body).Decode(&description))
	found := map[string][]string{}
	for path, item := range description.Paths {
		for verb, operation := range item {
			found["brokerd.v1."+operation.RPC] = append(found["brokerd.v1."+operation.RPC], strings.ToUpper(verb)+" "+path)
		}
	}
	return found
}

// logIn returns a token of the dashboard.
func logIn(t *testing.T, b *apptest.Broker, access pb.CredentialAccess) string {
	t.Helper()
	link := apptest.Must(t, b.Root().CreateLoginLink, &pb.CreateLoginLinkRequest{Access: access})
	anyone := pb.NewCredentialServiceClient(b.OverTCP(""))
	return apptest.Must(t, anyone.Login, &pb.LoginRequest{Secret: link.GetSecret()}).GetToken()
}

// Each level has the same access over HTTP as over gRPC, through each route and through /v1/call. The
// observer and the operator have tokens of the dashboard. The requests name a field that no RPC has, so
// one that the broker permits has no effect.
func TestAccess_EveryLevelOnEveryRPCOverHTTP(t *testing.T) {
	t.Parallel()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	b := apptest.Start(t, apptest.WithFakeClock())
	b.Registered("builder-1", "builder")
	secrets := map[string]string{"none": ""}
	conns := map[string]*grpc.ClientConn{}
	_, secrets["agent"] = b.Issue(&pb.IssueCredentialRequest{
		Access: pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, Session: "default", Agent: "builder-1",
	})
	secrets["observer"] = logIn(t, b, pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER)
	secrets["operator"] = logIn(t, b, pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR)
	for level, secret := range secrets {
		conns[level] = b.OverTCP(secret)
	}
	methods := map[string]protoreflect.MethodDescriptor{}
	maps.Copy(methods, served(t, b))
	maps.DeleteFunc(methods, func(name string, _ protoreflect.MethodDescriptor) bool {
		return !strings.HasPrefix(name, "brokerd.v1.")
	})
	if len(methods) < 100 {
		t.Errorf("the daemon serves %d RPCs of its own", len(methods))
	}
	reached := routes(t, b)
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if len(reached[name]) == 0 {
			t.Errorf("no path reaches %s", name)
		}
		call := "POST /v1/call/" + strings.TrimPrefix(name, "brokerd.v1.")
		for _, level := range levels {
			ctx, cancel := context.WithTimeout(context.Background(), apptest.Patience)
			b.Clock.Advance(3 * time.Second) // another failed attempt is permitted
			err := attempt(ctx, conns[level], name, methods[name])
			cancel()
			for _, route := range append(reached[name], call) {
				b.Clock.Advance(3 * time.Second)
				verb, path, _ := strings.Cut(route, " ")
				path = strings.NewReplacer("{caller}", "builder-1", "{session}", "default", "{", "", "}", "").Replace(path)
				got := request(t, b, verb, path+"?no_such_field=1", `{"no_such_field":1}`, secrets[level])
				want := post{http.StatusBadRequest, "INVALID_ARGUMENT"}
				if reason := testkit.Reason(err); reason == "CREDENTIAL_REQUIRED" {
					want = post{http.StatusUnauthorized, reason}
				} else if refusals[reason] {
					want = post{http.StatusForbidden, reason}
				}
				if strings.Contains(route, "/{caller}") && level == "observer" {
					want.reason = "CREDENTIAL_BOUND" // the path names an agent
				}
				if got != want {
					t.Errorf("%s as %s: %v, want %v, as over gRPC", route, level, got, want)
				}
			}
		}
	}
}
