package sessions_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestMigration_SettingsOfAnOlderDatabaseAreKept(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a database of an older version, which only SQLite has")
	k := &kit{t: t, dir: t.TempDir(), clock: clockwork.NewFakeClockAt(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))}
	old := testkit.Store(t, k.dir, k.clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations()[:1])
	err := old.Write(t.Context(), func(tx *store.Tx) error {
		tx.Exec(`
			INSERT INTO sessions (name, description, created_at, ageing, mailbox_limit, max_attempts, revision)
			VALUES ('team-1', 'a team', ?, ?, 7, 9, 0), ('team-2', '', ?, 0, 0, 1, 0)`, k.clock.Now(), int64(time.Hour), k.clock.Now())
		return nil
	})
	testkit.NoError(t, err)
	testkit.NoError(t, old.Close())

	k.open()
	same(t, defaults(nil), k.get("default").GetSettings())
	got := k.get("team-1")
	same(t, defaults(settings(time.Hour, 7, 9)), got.GetSettings())
	if got.GetDescription() != "a team" || !got.GetCreatedAt().AsTime().Equal(k.clock.Now()) || got.GetState() != pb.SessionState_SESSION_STATE_OPEN {
		t.Errorf("got %v", got)
	}
	same(t, defaults(settings(0, 0, 1)), k.get("team-2").GetSettings())

	out, err := k.api.ConfigureSession(k.ctx(), &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: proto.Float64(0.5)}})
	testkit.NoError(t, err)
	same(t, defaults(&pb.SessionSettings{SendRate: proto.Float64(0.5)}), out.GetSession().GetSettings())
}

// oldSettings are the settings in the JSON text of older versions, each with a value that is not its default.
var oldSettings = []struct{ name, value string }{
	{"Ageing", "3600000000000"}, {"MailboxLimit", "7"}, {"MaxAttempts", "4"}, {"SendRate", "0.5"}, {"SendBurst", "9"},
	{"MessageLimit", "4096"}, {"PayloadLimit", "2048"}, {"BreakerLimit", "0"}, {"BreakerTime", "120000000000"},
	{"ResponseTime", "1500000000"}, {"EscalateTo", `["overseer","lead"]`}, {"Directors", "null"}, {"KeepMessages", "0"},
	{"KeepEvents", "172800000000000"}, {"KeepDead", "90000000000"}, {"FoldCase", "true"}, {"StaleAfter", "0"},
	{"BlockerTime", "300000000000"}, {"UnknownTypes", "3"}, {"BadPayloads", "1"}, {"Artifact", "1024"}, {"Artifacts", "0"},
}

// newSettings are the same.
func newSettings() *pb.SessionSettings {
	return &pb.SessionSettings{
		Ageing: durationpb.New(time.Hour), MailboxLimit: proto.Int64(7), MaxAttempts: proto.Int32(4),
		SendRate: proto.Float64(0.5), SendBurst: proto.Int32(9), MessageLimit: proto.Int32(4096),
		PayloadLimit: proto.Int32(2048), BreakerFailures: proto.Int32(0), BreakerTime: durationpb.New(2 * time.Minute),
		ResponseTime: durationpb.New(1500 * time.Millisecond),
		EscalateTo:   &pb.Names{Names: []string{"overseer", "lead"}}, Directors: &pb.Names{},
		MessageRetention: durationpb.New(0), EventRetention: durationpb.New(48 * time.Hour),
		DeadLetterRetention: durationpb.New(90 * time.Second), FoldCase: proto.Bool(true), StaleAfter: durationpb.New(0),
		BlockerEscalation: durationpb.New(5 * time.Minute), UnknownTypes: pb.TypePolicy_TYPE_POLICY_REFUSE,
		InvalidPayloads: pb.TypePolicy_TYPE_POLICY_ALLOW, ArtifactLimit: proto.Int64(1024), ArtifactTotalLimit: proto.Int64(0),
	}
}

func TestMigration_EachSettingOfAJSONTextIsKept(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a database of an older version, which only SQLite has")
	k := &kit{t: t, dir: t.TempDir(), clock: clockwork.NewFakeClockAt(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))}
	fields := newSettings().ProtoReflect()
	want := map[string]*pb.SessionSettings{
		"none": {}, "all": newSettings(), "damaged": {}, "half": {},
	}
	texts := map[string]string{"none": `{}`, "damaged": `{"Ageing":`, "half": `{"SendRate":"x","MailboxLimit":7}`}
	all := make([]string, len(oldSettings))
	for i, s := range oldSettings {
		all[i] = `"` + s.name + `":` + s.value
		texts[s.name] = "{" + all[i] + "}"
		want[s.name] = &pb.SessionSettings{}
		f := fields.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(i + 1))
		want[s.name].ProtoReflect().Set(f, fields.Get(f))
	}
	texts["all"] = "{" + strings.Join(all, ",") + "}"

	old := testkit.Store(t, k.dir, k.clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations()[:2])
	err := old.Write(t.Context(), func(tx *store.Tx) error {
		for name, text := range texts {
			tx.Exec(`INSERT INTO sessions (name, description, created_at, revision, settings) VALUES (?, '', ?, 0, ?)`,
				name, k.clock.Now(), text)
		}
		return nil
	})
	testkit.NoError(t, err)
	testkit.NoError(t, old.Close())
	k.open()
	for name, settings := range want {
		if diff := cmp.Diff(defaults(settings), k.get(name).GetSettings(), protocmp.Transform()); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

func TestMigration_ARepeatedRequestOfAnOlderVersionGetsTheSessionAsItIs(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a database of an older version, which only SQLite has")
	k := newKit(t)
	create := &pb.CreateSessionRequest{RequestId: uuid.NewString(), Name: "team-1", Settings: settings(time.Hour, 1, 1)}
	made := k.create(create)
	err := k.store.Write(t.Context(), func(tx *store.Tx) error {
		tx.Exec(`UPDATE requests SET answer = ?`, `{"ID":2,"Name":"team-1","Settings":{"Ageing":3600000000000,"MailboxLimit":1},
			"ClosedAt":"0001-01-01T00:00:00Z","Description":"","CreatedAt":"2030-01-02T03:04:05Z","Revision":1}`)
		return nil
	})
	testkit.NoError(t, err)
	same(t, made, k.create(create))
}
