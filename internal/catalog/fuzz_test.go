package catalog_test

import (
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/catalog"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/msgtype"
	"brokerd/internal/sessions"
	"brokerd/internal/testkit"
)

// The bounds are those of catalog.proto.

func FuzzRegisterMessageType(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).RegisterMessageType, func(b *testkit.Bounds, r *pb.RegisterMessageTypeRequest) {
		for _, s := range append(r.Aliases, r.Name) {
			b.Text(128, msgtype.Fold(s))
		}
	}, &pb.RegisterMessageTypeRequest{Name: "BuildDone", Aliases: []string{"build.finished"}, Title: "T", Sender: "s", Recipient: "r", Example: `{"n":1}`,
		Schema: `{"type":"object","properties":{"n":{"minimum":0}}}`},
		&pb.RegisterMessageTypeRequest{Name: "x", Schema: `{"minimum":0}`, Example: `1e10000000`}, &pb.RegisterMessageTypeRequest{Name: "", Aliases: []string{"", "a b"}, Schema: "{"})
}

// fuzzed returns the service of a catalog without sessions.
func fuzzed(f *testing.F) *catalog.Service {
	clock := clockwork.NewRealClock()
	st := testkit.Store(f, f.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(), catalog.Migrations())
	return catalog.New(st, events.New(st, clock, zap.NewNop()), directory.New())
}
