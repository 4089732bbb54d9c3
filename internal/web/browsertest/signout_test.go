package browsertest

import (
	"slices"
	"testing"

	"github.com/chromedp/chromedp"

	pb "brokerd/gen/brokerd/v1"
)

// signOut is an expression that presses the button of the navigation.
const signOut = `press(all('button').find((b) => b.textContent === 'Sign out'))`

// login returns the credential of the newest login.
func (m *team) login() *pb.Credential {
	m.t.Helper()
	all := call(m, "", pb.NewCredentialServiceClient, pb.CredentialServiceClient.ListCredentials,
		&pb.ListCredentialsRequest{}).GetCredentials()
	return all[len(all)-1]
}

// awaitLogout waits until the broker has revoked the newest login.
func (m *team) awaitLogout() {
	m.t.Helper()
	id := m.login().GetId()
	stream, err := pb.NewEventServiceClient(m.Operator()).SubscribeEvents(m.ctx, &pb.SubscribeEventsRequest{
		Filter: &pb.EventFilter{Types: []string{"credential.revoked"}}, AfterRevision: new(int64)})
	for err == nil {
		var out *pb.SubscribeEventsResponse
		out, err = stream.Recv()
		for _, e := range out.GetEvents() {
			if slices.Equal(e.GetRelated(), []string{id}) {
				return
			}
		}
	}
	m.t.Fatal(err)
}

func TestSignOut_RevokesTheTokenInAllTabs(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	base := "http://" + m.TCP()
	store := newTab(t, browser(t), base, chromedp.WithNewBrowserContext()) // stays empty
	first, second := newTab(t, store.ctx, base), newTab(t, store.ctx, base)
	for _, level := range []pb.CredentialAccess{operator, observer} {
		first.signIn(m, level)
		second.load("/#/team", "team")
		first.await(signOut)
		m.awaitLogout()
		for _, p := range []*tab{first, second} {
			p.await(`one('[data-view="login"]') && !one('.failure') && localStorage.length === 0`)
		}
	}
}

func TestSignOut_SaysThatTheBrokerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	r := newRelay(t, m.TCP())
	p := openAt(m, r.base(), operator, "team")
	r.to("")
	p.await(signOut)
	p.await(`has(one('[data-view="login"] .failure'), 'the broker has not ended the token') && localStorage.length === 0`)
	if c := m.login(); c.GetState() != pb.CredentialState_CREDENTIAL_STATE_ACTIVE {
		t.Errorf("the credential is %v", c)
	}
}
