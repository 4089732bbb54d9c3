package agents_test

import (
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/caller"
)

func TestLastSeen_SurvivesARestart(t *testing.T) {
	w := newTeam(t)
	w.register("a")
	w.pass(20 * time.Second)
	w.beats("a")
	called := w.Clock.Now()
	w.pass(5 * time.Second)
	w.Restart()
	if got := w.look("a").GetLastSeen().AsTime(); !got.Equal(called) {
		t.Errorf("last seen at %v, want the time of the heartbeat, %v", got, called)
	}
	w.Restart() // no call since: the time stays
	if got := w.look("a").GetLastSeen().AsTime(); !got.Equal(called) {
		t.Errorf("after another restart: last seen at %v, want %v", got, called)
	}
}

func TestLastSeen_OneWriteAMinuteForAllAgents(t *testing.T) {
	k := newKit(t)
	if err := k.registry.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.registry.Stop() })
	for _, name := range []string{"a", "b", "c"} {
		k.register(name, &pb.RegisterAgentRequest{})
	}
	commits := k.store.Stats().Commits
	k.clock.Advance(time.Second)
	for _, name := range []string{"a", "b", "b"} {
		k.registry.Ended(caller.Caller{Access: caller.Agent, Session: "default", Agent: name})
	}
	called := k.clock.Now()
	for range 60 {
		if now := k.store.Stats().Commits; now != commits {
			t.Fatalf("%d commits within the minute, were %d", now, commits)
		}
		k.clock.Advance(time.Second)
	}
	for begin := time.Now(); k.store.Stats().Commits == commits; {
		if time.Since(begin) > apptest.Patience {
			t.Fatal("the activity was not written")
		}
	}
	if now := k.store.Stats().Commits; now != commits+1 {
		t.Errorf("%d commits for two agents", now-commits)
	}
	if err := k.store.Close(); err != nil { // without Stop, as in a crash
		t.Fatal(err)
	}
	k.registry.Stop()
	k.open()
	for _, name := range []string{"a", "b"} {
		if got := k.get(name).GetLastSeen().AsTime(); !got.Equal(called) {
			t.Errorf("%s: last seen at %v, want %v", name, got, called)
		}
	}
	if a := k.get("c"); !a.GetLastSeen().AsTime().Equal(a.GetRegisteredAt().AsTime()) {
		t.Errorf("c: last seen at %v", a.GetLastSeen())
	}
}
