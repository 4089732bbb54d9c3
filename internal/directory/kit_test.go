package directory_test

import (
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"brokerd/internal/agents"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// defaultSession is the row id of the session "default".
const defaultSession = 1

// A kit is a directory of the sessions and agents that the registries make.
type kit struct {
	t        *testing.T
	store    *store.Store
	dir      *directory.Directory
	sessions *sessions.Registry
	agents   *agents.Registry
}

func newKit(t *testing.T) *kit {
	t.Helper()
	clock := clockwork.NewFakeClockAt(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	k := &kit{t: t, dir: directory.New()}
	k.store = testkit.Store(t, t.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(),
		agents.Migrations())
	log := events.New(k.store, clock, zap.NewNop())
	k.sessions = sessions.New(k.store, log, k.dir)
	k.agents = agents.New(k.store, log, k.dir, clock, zap.NewNop())
	k.agents.UseMail(noMail{})
	return k
}

// noMail has no mail for any agent.
type noMail struct{ agents.Mail }

func (noMail) Counts(store.Querier, int64, directory.Agent) (unread, claimable int64, err error) {
	return 0, 0, nil
}
func (noMail) Directives(store.Querier, int64, string) ([]string, error)     { return nil, nil }
func (noMail) Gated(store.Querier, int64) (map[string]directory.Gate, error) { return nil, nil }

// as returns an agent as the caller.
func as(name string) identity.Caller {
	return identity.Caller{Access: identity.Agent, Session: "default", Agent: name}
}

func (k *kit) register(name, role string) {
	k.t.Helper()
	what := agents.Description{Role: role, Lease: time.Minute}
	if _, _, err := k.agents.Register(k.t.Context(), as(name), idempotency.Request{}, what, false, agents.Harnessed{}); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kit) deregister(name string) {
	k.t.Helper()
	if _, err := k.agents.Deregister(k.t.Context(), as(name), idempotency.Request{}, ""); err != nil {
		k.t.Fatal(err)
	}
}

// configure changes the session "default".
func (k *kit) configure(c sessions.Change) {
	k.t.Helper()
	who := identity.Caller{Access: identity.Operator, Session: "default"}
	if _, err := k.sessions.Configure(k.t.Context(), who, idempotency.Request{}, c); err != nil {
		k.t.Fatal(err)
	}
}

// read runs fn on a snapshot.
func (k *kit) read(fn func(*store.Snapshot) error) {
	k.t.Helper()
	testkit.NoError(k.t, k.store.Read(k.t.Context(), fn))
}

// write runs fn in a transaction.
func (k *kit) write(fn func(*store.Tx) error) {
	k.t.Helper()
	testkit.NoError(k.t, k.store.Write(k.t.Context(), fn))
}
