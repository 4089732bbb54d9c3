package sessions_test

import (
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestMigration_SettingsOfAnOlderDatabaseAreKept(t *testing.T) {
	t.Parallel()
	k := &kit{t: t, dir: t.TempDir(), clock: clockwork.NewFakeClockAt(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))}
	old := testkit.Store(t, k.dir, k.clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations()[:1])
	err := old.Write(t.Context(), func(tx *store.Tx) error {
		tx.Exec(`
			INSERT INTO sessions (name, description, created_at, ageing, mailbox_limit, max_attempts, revision)
			VALUES ('team-1', 'a team', ?, ?, 7, 9, 0), ('team-2', '', ?, 0, 0, 1, 0)`, k.clock.Now(), int64(time.Hour), k.clock.Now())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}

	k.open()
	same(t, defaults(nil), k.get("default").GetSettings())
	got := k.get("team-1")
	same(t, defaults(settings(time.Hour, 7, 9)), got.GetSettings())
	if got.GetDescription() != "a team" || !got.GetCreatedAt().AsTime().Equal(k.clock.Now()) || got.GetState() != pb.SessionState_SESSION_STATE_OPEN {
		t.Errorf("got %v", got)
	}
	same(t, defaults(settings(0, 0, 1)), k.get("team-2").GetSettings())

	out, err := k.api.ConfigureSession(k.ctx(), &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: proto.Float64(0.5)}})
	if err != nil {
		t.Fatal(err)
	}
	same(t, defaults(&pb.SessionSettings{SendRate: proto.Float64(0.5)}), out.GetSession().GetSettings())
}

func TestMigration_StoredRolesOfEscalateToAreKept(t *testing.T) {
	t.Parallel()
	k := &kit{t: t, dir: t.TempDir(), clock: clockwork.NewFakeClockAt(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))}
	old := testkit.Store(t, k.dir, k.clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations())
	err := old.Write(t.Context(), func(tx *store.Tx) error {
		tx.Exec(`
			INSERT INTO sessions (name, description, created_at, revision, settings)
			VALUES ('team-1', '', ?, 0, '{"EscalateTo":["overseer","lead"]}')`, k.clock.Now())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	k.open()
	same(t, defaults(&pb.SessionSettings{EscalateTo: &pb.Names{Names: []string{"overseer", "lead"}}}), k.get("team-1").GetSettings())
}
