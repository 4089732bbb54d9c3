package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
	"brokerd/internal/testkit"
)

// withDatabase opens the store on a database with further options.
func withDatabase(t *testing.T, url string, set func(*postgres.Database)) func(*store.Options) {
	t.Helper()
	db, err := postgres.New(url, "", clockwork.NewRealClock())
	testkit.NoError(t, err)
	set(db)
	return func(o *store.Options) { o.Database = db }
}

// A broker that requires a synchronous standby confirms nothing without one.
func TestStandby_IsRequired(t *testing.T) {
	t.Parallel()
	primary := postgrestest.Own(t)
	url := primary.URL("postgres")
	required := withDatabase(t, url, (*postgres.Database).RequireStandby)
	_, err := try(t, url, required)
	wantReason(t, err, fault.Unavailable, postgres.ReasonNoStandby)

	standby := primary.Standby(t)
	testkit.NoError(t, primary.AwaitStandby())
	s := open(t, url, required)
	testkit.NoError(t, add(s, "with a standby"))

	admin(t, url, `ALTER SYSTEM SET synchronous_standby_names = ''`)
	admin(t, url, `SELECT pg_reload_conf()`)
	for err = nil; err == nil; { // until the writer's process of the server has read the settings
		err = add(s, "perhaps")
	}
	wantReason(t, err, fault.Unavailable, postgres.ReasonNoStandby)
	kept := len(names(t, s))
	wantReason(t, add(s, "without a standby"), fault.Unavailable, postgres.ReasonNoStandby)
	if n := len(names(t, s)); n != kept {
		t.Errorf("%d items are there, and %d before: what was refused is kept", n, kept)
	}
	testkit.NoError(t, primary.AwaitStandby())
	for err = add(s, "again"); err != nil; err = add(s, "again") {
		wantReason(t, err, fault.Unavailable, postgres.ReasonNoStandby)
	}
	if got := admin(t, standby.URL("postgres"), `SELECT name FROM items WHERE name = 'with a standby'`); len(got) != 1 {
		t.Errorf("the standby has %q", got)
	}
}

// A broker whose writer has begun on a primary goes on at the standby that takes its place. It loses nothing if the
// standby is synchronous.
func TestStandby_TakesThePlaceOfThePrimary(t *testing.T) {
	t.Parallel()
	primary := postgrestest.Own(t)
	standby := primary.Standby(t)
	testkit.NoError(t, primary.AwaitStandby())
	url := with(t, primary.URL("postgres"), "host", primary.Dir()+","+standby.Dir(), "target_session_attrs", "read-write")
	s := open(t, url)
	testkit.NoError(t, add(s, "one"))
	primary.Kill()
	testkit.NoError(t, standby.Promote())
	for add(s, "two") != nil { // until it has found the standby
	}
	wantNames(t, s, "one", "two")
}

// A server that has lost transactions is not led, by a replica that has seen them.
func TestStandby_AReplicaDoesNotLeadWithoutTheCommitsItKnows(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, add(s, "one"))
	testkit.NoError(t, s.Close())
	knows := func(seen postgres.Seen) func(*store.Options) {
		return withDatabase(t, url, func(d *postgres.Database) { d.Expect(func() postgres.Seen { return seen }) })
	}
	for _, more := range []postgres.Seen{
		{Instance: s.InstanceID(), Commits: 1000},
		{Instance: s.InstanceID(), Revision: s.Revision() + 1},
	} {
		_, err := try(t, url, knows(more))
		wantReason(t, err, fault.Precondition, "COMMITS_LOST")
	}
	for _, seen := range []postgres.Seen{
		{Instance: s.InstanceID() + 1, Revision: 1000, Commits: 1000}, // of another database
		{Instance: s.InstanceID(), Revision: s.Revision(), Commits: 1},
	} {
		again := open(t, url, knows(seen))
		wantNames(t, again, "one")
		testkit.NoError(t, again.Close())
	}
}

// A replica does not lead where it could not see that another one is silent.
func TestStandby_NeedsAServerThatTracksActivities(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	admin(t, url, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET track_activities = off', current_database()); END $$`)
	_, err := try(t, url, withDatabase(t, url, func(d *postgres.Database) { d.StandBy() }))
	wantReason(t, err, fault.Precondition, "ACTIVITIES_UNTRACKED")
	open(t, url)
}

func roster(t *testing.T, url string) *postgres.Roster {
	t.Helper()
	db, err := postgres.New(url, "", clockwork.NewRealClock())
	testkit.NoError(t, err)
	r := postgres.NewRoster(db)
	t.Cleanup(func() { testkit.NoError(t, r.Close()) })
	return r
}

func TestRoster_HasTheReplicasAndWhoLeads(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	one := postgres.Replica{Address: "127.0.0.1:1", Certificate: []byte{0, 1}, Operator: []byte{2}, Version: "1.0"}
	two := postgres.Replica{Address: "127.0.0.1:2", Certificate: []byte{3}, Operator: []byte{4}, Version: "1.0"}
	r := roster(t, url)
	if err := r.Sign(t.Context(), one); err == nil {
		t.Error("it has signed before the table was made")
	}
	open(t, url)
	epoch := int64(1)
	for _, me := range []postgres.Replica{one, two} {
		testkit.NoError(t, r.Sign(t.Context(), me))
	}
	if led, err := r.Lead(t.Context(), one, epoch); !led || err != nil {
		t.Errorf("the replica under the epoch of the database does not lead: %v", err)
	}
	if led, err := r.Lead(t.Context(), two, epoch+1); led || err != nil { // of no broker
		t.Errorf("a replica under another epoch leads: %v, %v", led, err)
	}
	leaders := func() (all []string) {
		list, err := r.Replicas(t.Context())
		testkit.NoError(t, err)
		if len(list) != 2 || string(list[0].Certificate) != string(one.Certificate) || string(list[1].Operator) != string(two.Operator) {
			t.Errorf("the list is %v", list)
		}
		for _, each := range list {
			if each.Leading {
				all = append(all, each.Address)
			}
		}
		return all
	}
	if got := leaders(); len(got) != 1 || got[0] != one.Address {
		t.Errorf("%q lead, want %s", got, one.Address)
	}
	one.Certificate = []byte{9} // it has started again, and does not lead yet
	testkit.NoError(t, r.Sign(t.Context(), one))
	if got := leaders(); len(got) > 0 {
		t.Errorf("%q lead, and none does", got)
	}
	if seen := r.Seen(); seen.Instance == 0 || seen.Commits == 0 {
		t.Error("no transaction was counted")
	}
	testkit.NoError(t, r.Leave(t.Context(), two))
	if list, err := r.Replicas(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// The connection of a writer that is silent for a lease is ended, and that of one that speaks is not.
func TestRoster_EndsASilentLeader(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	proxy := postgrestest.NewProxy(t, url)
	fatal := make(chan error, 1)
	s := open(t, proxy.URL, func(o *store.Options) { o.Fatal = func(err error) { fatal <- err } })
	r := roster(t, url)
	began := time.Now()
	for time.Since(began) < postgres.Lease+2*time.Second { // the time of the server, which no test can set
		ended, err := r.EndSilent(t.Context())
		if ended || err != nil {
			t.Fatalf("the connection of a leader that speaks was ended: %v, %v", ended, err)
		}
	}
	proxy.Freeze()
	for ended := false; !ended; {
		var err error
		ended, err = r.EndSilent(t.Context())
		testkit.NoError(t, err)
	}
	next := open(t, url)
	testkit.NoError(t, add(next, "of the next one"))
	proxy.Thaw()
	if err := <-fatal; !errors.Is(err, store.ErrUnknown) { // it finds that another one leads
		t.Error(err)
	}
	if err := add(s, "of the first one"); err == nil {
		t.Error("the first one still writes")
	}
	wantNames(t, next, "of the next one")
}
