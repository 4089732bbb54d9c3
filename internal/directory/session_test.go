package directory_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/sessions"
	"brokerd/internal/settings"
	"brokerd/internal/store"
)

func (k *kit) create(name string, c sessions.Change) {
	k.t.Helper()
	who := identity.Caller{Access: identity.Operator, Session: "default"}
	if _, err := k.sessions.Create(k.t.Context(), who, idempotency.Request{}, name, c); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kit) close(name string) {
	k.t.Helper()
	who := identity.Caller{Access: identity.Operator, Session: "default"}
	if _, err := k.sessions.Close(k.t.Context(), who, idempotency.Request{}, name, ""); err != nil {
		k.t.Fatal(err)
	}
}

func TestSession_FindsIDNameAndSettings(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	given := &pb.SessionSettings{Ageing: durationpb.New(time.Hour), MailboxLimit: proto.Int64(5), FoldCase: proto.Bool(true)}
	k.create("team-1", sessions.Change{Settings: given})
	want := directory.Session{ID: 2, Name: "team-1", Settings: settings.With(settings.Default(), given)}
	k.read(func(snap *store.Snapshot) error {
		s, err := k.dir.Session(snap, "team-1")
		if diff := cmp.Diff(want, s, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		s, err = k.dir.ByID(snap, 2)
		if diff := cmp.Diff(want, s, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("by id: %v (-want +got):\n%s", err, diff)
		}
		if id, err := k.dir.SessionID(snap, "default"); id != 1 || err != nil {
			t.Errorf("ID of default = %d, %v", id, err)
		}
		_, err = k.dir.Session(snap, "nowhere")
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.NotFound || f.Resource != "session" || f.Name != "nowhere" {
			t.Errorf("nowhere: %v", err)
		}
		if _, err = k.dir.SessionID(snap, "nowhere"); fault.KindOf(err) != fault.NotFound {
			t.Errorf("nowhere: %v", err)
		}
		if _, err = k.dir.ByID(snap, 3); !errors.Is(err, store.ErrNoRows) {
			t.Errorf("by an id that was not given: %v", err)
		}
		return nil
	})
}

func TestSession_InATransactionSeesEveryChangeAtOnce(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	for limit := int64(1); limit <= 3; limit++ {
		k.configure(sessions.Change{Settings: &pb.SessionSettings{MailboxLimit: &limit}})
		k.write(func(tx *store.Tx) error {
			s, err := k.dir.Session(tx, "default")
			if s.Settings.GetMailboxLimit() != limit {
				t.Errorf("limit %d, want %d", s.Settings.GetMailboxLimit(), limit)
			}
			return err
		})
	}
}

func TestSession_AClosedOneIsReadAndNotChanged(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.create("team-1", sessions.Change{})
	k.create("team-2", sessions.Change{})
	open := func(want ...string) {
		t.Helper()
		k.read(func(snap *store.Snapshot) error {
			names, err := k.dir.Open(snap)
			if diff := cmp.Diff(want, names); diff != "" {
				t.Errorf("open sessions (-want +got):\n%s", diff)
			}
			if n, err := k.dir.CountSessions(snap); n != 3 || err != nil {
				t.Errorf("%d sessions, %v", n, err)
			}
			return err
		})
	}
	look := func(q store.Querier) map[string]error {
		_, byName := k.dir.Session(q, "team-1")
		_, id := k.dir.SessionID(q, "team-1")
		return map[string]error{"Session": byName, "SessionID": id}
	}
	k.write(func(tx *store.Tx) error { return errors.Join(look(tx)["Session"], look(tx)["SessionID"]) }) // it is kept now
	open("default", "team-1", "team-2")
	k.close("team-1")
	open("default", "team-2")
	k.read(func(snap *store.Snapshot) error {
		s, err := k.dir.Session(snap, "team-1")
		if err != nil || !s.Closed() {
			t.Errorf("closed %v, %v", s.Closed(), err)
		}
		return look(snap)["SessionID"]
	})
	k.write(func(tx *store.Tx) error {
		for name, err := range look(tx) {
			var f *fault.Error
			if !errors.As(err, &f) || f.Reason != "SESSION_CLOSED" {
				t.Errorf("%s in a transaction: %v", name, err)
			}
		}
		s, err := k.dir.ByID(tx, 2)
		if !s.Closed() {
			t.Errorf("by id: %v", s)
		}
		return err
	})
}
