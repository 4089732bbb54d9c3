package agents_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/agents"
	"brokerd/internal/caller"
	"brokerd/internal/events"
	"brokerd/internal/once"
	"brokerd/internal/sessions"
	"brokerd/internal/testkit"
)

// What every call costs beside what it does.
func BenchmarkPresence(b *testing.B) {
	clock := clockwork.NewRealClock()
	st := testkit.Store(b, b.TempDir(), clock, events.Migrations(), once.Migrations(), sessions.Migrations(), agents.Migrations())
	log := events.New(st, clock, zap.NewNop())
	r := agents.New(st, log, sessions.New(st, log), clock, zap.NewNop())
	var who []caller.Caller
	for i := range 1000 {
		c := caller.Caller{Access: caller.Agent, Session: "default", Agent: fmt.Sprint("agent-", i)}
		if _, _, err := r.Register(b.Context(), c, once.Request{}, agents.Description{Lease: time.Minute}); err != nil {
			b.Fatal(err)
		}
		who = append(who, c)
	}
	now := clock.Now()
	for i := 0; b.Loop(); i++ {
		c := who[i%len(who)]
		r.Began(b.Context(), c, "Send", now)
		r.Ended(c)
	}
}
