package admission

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/identity"
	"brokerd/internal/settings"
)

func TestSendRates_ForgetAgentsThatAreIdle(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	r := newSendRates(clock, nil, func(context.Context, string) (directory.Session, error) {
		return directory.Session{Settings: settings.Default()}, nil
	})
	for i := range 10_000 {
		if err := r.wait(t.Context(), identity.Caller{Agent: "a" + strconv.Itoa(i), Session: "s"}, 1, 0); err != nil {
			t.Fatal(err)
		}
		clock.Advance(10 * time.Millisecond) // ten of them have not got their message back yet
		if n := len(r.sessions["s"].agents); n > 2*11+idleAgents {
			t.Fatalf("%d agents are known after %d", n, i+1)
		}
	}
}

func BenchmarkSendRates(b *testing.B) {
	for name, rules := range map[string]*pb.SessionSettings{"off": nil, "on": {SendRate: proto.Float64(1e6), SendBurst: proto.Int32(1e6)}} {
		b.Run(name, func(b *testing.B) {
			r := newSendRates(clockwork.NewRealClock(), nil, func(context.Context, string) (directory.Session, error) {
				return directory.Session{Settings: rules}, nil
			})
			who := identity.Caller{Agent: "a", Session: "s"}
			for b.Loop() {
				_ = r.wait(b.Context(), who, 1, endless)
			}
		})
	}
}
