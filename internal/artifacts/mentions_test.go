package artifacts_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/artifacts"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// The values fill several pages of the search, and the only one that names a version is on the last.
func TestRetention_SearchesAllPagesOfTheData(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	o := w.Root()
	for _, content := range []string{"1", "2", "3"} {
		upload(o, "plan.md", content)
	}
	text := func(s string) *pb.StateValue {
		return &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: s}}
	}
	for range 10 {
		apptest.Must(t, o.PutState, &pb.PutStateRequest{Key: "large", Value: text(strings.Repeat("plan.md@1x ", 20_000))})
	}
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		apptest.Must(t, o.PutState, &pb.PutStateRequest{Key: key, Value: text(strings.Repeat("plan.md@1x ", 20_000))})
	}
	apptest.Must(t, o.PutState, &pb.PutStateRequest{Key: "last", Value: text("plan.md@2")})
	w.Clock.Advance(73 * time.Hour)
	awaitVersions(w, "plan.md@3 plan.md@2")
}

// repository returns a repository with one version that was replaced, at the time 1, and one that was not. mentions are all
// the data that may name it.
func repository(t *testing.T, mentions artifacts.Mentions) (*artifacts.Service, *store.Store) {
	t.Helper()
	dir, clock := t.TempDir(), clockwork.NewRealClock()
	st := testkit.Store(t, dir, clock, artifacts.Migrations())
	contents, err := artifacts.OpenFolder(filepath.Join(dir, artifacts.Folder))
	apptest.NoError(t, err)
	r := artifacts.New(&work.Desk{Store: st, Clock: clock, Log: zap.NewNop()}, contents, artifacts.Options{})
	t.Cleanup(func() { apptest.NoError(t, r.Stop()) })
	r.UseMentions(mentions)
	apptest.NoError(t, st.Write(t.Context(), func(tx *store.Tx) error {
		for _, statement := range []string{
			`INSERT INTO artifact_contents (session, sha256, size, versions) VALUES (1, 'aa', 1, 1)`,
			`INSERT INTO artifact_versions (session, name, version, revision, sha256, size, media_type, description, task_id, author, created_at, replaced_at)
			 VALUES (1, 'plan', 1, 1, 'aa', 1, '', '', '', 'a', 1, 1)`,
		} {
			tx.Exec(statement)
		}
		return nil
	}))
	return r, st
}

func TestRemove_IsRefusedForAVersionThatIsNamedSinceTheSearch(t *testing.T) {
	t.Parallel()
	var pages []int64
	named := false
	r, st := repository(t, func(_ store.Querier, _, after int64, texts *work.Texts) (int64, bool, error) {
		pages = append(pages, after)
		if named {
			texts.Find("plan@1")
		}
		return min(after+10, 30), after < 20, nil
	})
	remove := func(done ...work.Done) error {
		return st.Write(t.Context(), func(tx *store.Tx) error { return r.Remove(tx, 1, done) })
	}
	if err := remove(work.Done{Key: 1}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("before any search: %v", err)
	}
	found, _, err := r.Replaced(context.Background(), 1, time.Now(), 100)
	apptest.NoError(t, err)
	if len(found) != 1 || len(pages) != 3 || pages[2] != 20 {
		t.Fatal(found, pages)
	}
	named = true
	if err := remove(found...); fault.KindOf(err) != fault.Conflict {
		t.Errorf("named since: %v", err)
	}
	if last := pages[len(pages)-1]; last != 30 {
		t.Errorf("Remove has searched after %d, not after what the search has read", last)
	}
	if found, _, err := r.Replaced(context.Background(), 1, time.Now(), 100); err != nil || len(found) != 0 {
		t.Error(found, err)
	}
}
