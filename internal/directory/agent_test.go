package directory_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/agents"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestActing_FindsTheCallerOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.register("a", "builder")
	k.register("a", "builder")
	k.register("gone", "")
	k.deregister("gone")
	registered := directory.Agent{
		ID: 1, Session: 1, Name: "a", Role: "builder", Incarnation: 2, Attention: directory.AttentionOpen,
	}
	for _, c := range []struct {
		name   string
		caller identity.Caller
		want   directory.Agent
		kind   fault.Kind
		reason string
	}{
		{"registered", identity.Caller{Access: identity.Agent, Agent: "a"}, registered, 0, ""},
		{"newest incarnation", identity.Caller{Access: identity.Agent, Agent: "a", Incarnation: 2}, registered, 0, ""},
		{"operator as the agent", identity.Caller{Access: identity.Operator, Agent: "a"}, registered, 0, ""},
		{"operator", identity.Caller{Access: identity.Operator}, directory.Agent{Name: "system"}, 0, ""},
		{"stale incarnation", identity.Caller{Access: identity.Agent, Agent: "a", Incarnation: 1}, directory.Agent{}, fault.Precondition, "STALE_INCARNATION"},
		{"never registered", identity.Caller{Access: identity.Agent, Agent: "b"}, directory.Agent{}, fault.Precondition, "AGENT_NOT_REGISTERED"},
		{"deregistered", identity.Caller{Access: identity.Agent, Agent: "gone"}, directory.Agent{}, fault.Precondition, "AGENT_NOT_REGISTERED"},
		{"observer that reads", identity.Caller{Access: identity.Observer}, directory.Agent{Name: "system"}, 0, ""},
		{"nobody", identity.Caller{}, directory.Agent{}, fault.Denied, "AGENT_REQUIRED"},
	} {
		k.read(func(snap *store.Snapshot) error {
			got, err := k.dir.Acting(snap, defaultSession, c.caller)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.name, diff)
			}
			var f *fault.Error
			if c.reason == "" && err != nil || c.reason != "" && (!errors.As(err, &f) || f.Kind != c.kind || f.Reason != c.reason) {
				t.Errorf("%s: %v, want %s", c.name, err, c.reason)
			}
			return nil
		})
	}
}

func TestActing_ObserverChangesNothing(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	err := k.store.Write(t.Context(), func(tx *store.Tx) error {
		_, err := k.dir.Acting(tx, defaultSession, identity.Caller{Access: identity.Observer})
		return err
	})
	if fault.KindOf(err) != fault.Denied {
		t.Errorf("got %v, want a refusal", err)
	}
}

func TestActing_InATransactionSeesEveryChangeAtOnce(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	acting := func() (a directory.Agent, err error) {
		t.Helper()
		_ = k.store.Write(t.Context(), func(tx *store.Tx) error {
			a, err = k.dir.Acting(tx, defaultSession, identity.Caller{Access: identity.Agent, Session: "default", Agent: "a"})
			return nil
		})
		return a, err
	}
	for incarnation := int64(1); incarnation <= 3; incarnation++ {
		role := fmt.Sprintf("role-%d", incarnation)
		k.register("a", role)
		if a, err := acting(); err != nil || a.Incarnation != incarnation || a.Role != role {
			t.Errorf("registered as %s, incarnation %d: %v, %v", role, incarnation, a, err)
		}
	}
	k.deregister("a")
	if a, err := acting(); fault.KindOf(err) != fault.Precondition {
		t.Errorf("deregistered: %v, %v", a, err)
	}
}

func TestMatching_OnlyStarAndQuestionMarkAreWildcards(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	for _, name := range []string{"builder-1", "builder-2", "builder-10", "Builder-1", "tester-1", "gone-1"} {
		k.register(name, name[:len(name)-2])
	}
	k.deregister("gone-1")
	for _, c := range []struct {
		role, pattern string
		want          []string
	}{
		{"", "", []string{"Builder-1", "builder-1", "builder-10", "builder-2", "tester-1"}},
		{"", "builder-*", []string{"builder-1", "builder-10", "builder-2"}},
		{"", "builder-?", []string{"builder-1", "builder-2"}},
		{"", "*-1", []string{"Builder-1", "builder-1", "tester-1"}},
		{"", "[bt]*", nil},
		{"", "builder-1", []string{"builder-1"}},
		{"", "none-*", nil},
		{"builder", "", []string{"builder-1", "builder-2"}},
		{"builder", "*-2", []string{"builder-2"}},
		{"none", "", nil},
	} {
		k.read(func(snap *store.Snapshot) error {
			found, err := k.dir.Matching(snap, defaultSession, directory.Selection{Role: c.role, Pattern: c.pattern})
			var got []string
			for _, a := range found {
				got = append(got, a.Name)
				if a.ID == 0 || a.Session != defaultSession || a.Incarnation != 1 || !strings.HasPrefix(a.Name, a.Role) {
					t.Errorf("got %v", a)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("role %q, pattern %q (-want +got):\n%s", c.role, c.pattern, diff)
			}
			if found, err := k.dir.Matching(snap, defaultSession+1, directory.Selection{Role: c.role}); len(found) > 0 || err != nil {
				t.Errorf("in another session: %v, %v", found, err)
			}
			return err
		})
	}
}

func TestMatching_PagesThroughWhatMatches(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	for _, name := range []string{"a-1", "a-2", "b-1", "b-10", "b-2", "b-3", "c-1"} {
		k.register(name, "builder")
	}
	for _, c := range []struct {
		pattern, after string
		limit          int
		want           []string
	}{
		{"", "", 2, []string{"a-1", "a-2"}},
		{"", "a-2", 2, []string{"b-1", "b-10"}},
		{"b-?", "", 2, []string{"b-1", "b-2"}},
		{"b-?", "b-2", 2, []string{"b-3"}},
		{"b-?", "b-15", 2, []string{"b-2", "b-3"}},
		{"*-1", "a-1", 1, []string{"b-1"}},
		{"b*", "a", 1, []string{"b-1"}},
		{"b*", "c", 1, nil},
	} {
		for _, role := range []string{"", "builder"} {
			k.read(func(snap *store.Snapshot) error {
				found, err := k.dir.Matching(snap, defaultSession,
					directory.Selection{Role: role, Pattern: c.pattern, After: c.after, Most: c.limit})
				var got []string
				for _, a := range found {
					got = append(got, a.Name)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("role %q, pattern %q, %d after %q (-want +got):\n%s", role, c.pattern, c.limit, c.after, diff)
				}
				return err
			})
		}
	}
}

func TestMatching_ReadsOnlyRegisteredAgents(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it reads SQLite's plans")
	k := newKit(t)
	k.read(func(snap *store.Snapshot) error {
		for query, index := range map[string]string{
			directory.SelectMatching:       "agents_registered (session=? AND name>? AND name<?)",
			directory.SelectMatchingOfRole: "agents_role (session=? AND role=? AND name>? AND name<?)",
		} {
			var detail string
			args := []any{defaultSession, "", ""}
			if index[7] == 'r' && index[8] == 'o' {
				args = []any{defaultSession, "builder", "", ""}
			}
			if err := snap.QueryRow("EXPLAIN QUERY PLAN "+query, args...).Scan(new(int), new(int), new(int), &detail); err != nil {
				return err
			}
			if !strings.Contains(detail, index) {
				t.Errorf("%s does not use %s: %s", query, index, detail)
			}
		}
		return nil
	})
}

// TestCompleted_FollowsTheStatusThatTheAgentReports reads the status in transactions too, in which Find has
// looked the agent up before.
func TestCompleted_FollowsTheStatusThatTheAgentReports(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.register("a", "builder")
	for _, status := range []agents.Status{agents.Active, agents.Completed, agents.Idle} {
		report := agents.Heartbeat{Status: &status}
		if _, err := k.agents.Heartbeat(t.Context(), as("a"), report); err != nil {
			t.Fatal(err)
		}
		k.write(func(tx *store.Tx) error {
			if _, found, err := k.dir.Find(tx, defaultSession, "a"); err != nil || !found {
				t.Errorf("find: %v, %v", found, err)
			}
			done, found, err := k.dir.Completed(tx, defaultSession, "a")
			if done != (status == agents.Completed) || !found {
				t.Errorf("%v: completed %v, registered %v", status, done, found)
			}
			return err
		})
	}
	k.deregister("a")
	k.read(func(snap *store.Snapshot) error {
		done, found, err := k.dir.Completed(snap, defaultSession, "a")
		if done || found {
			t.Errorf("deregistered: completed %v, registered %v", done, found)
		}
		return err
	})
}
