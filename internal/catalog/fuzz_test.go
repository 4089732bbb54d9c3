package catalog_test

import (
	"encoding/json"
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
		b.Between(int64(len(r.Aliases)), 0, 20)
		for _, s := range append(r.Aliases, r.Name) {
			b.Name(s, msgtype.Fold(s))
		}
		b.Line(512, r.Title, r.Sender, r.Recipient)
		for _, s := range []string{r.Example, r.Schema} {
			b.Text(64<<10, s)
			b.Holds(s == "" || json.Valid([]byte(s)), "JSON", s)
		}
	}, &pb.RegisterMessageTypeRequest{Name: "BuildDone", Aliases: []string{"build.finished"}, Title: "T", Sender: "s", Recipient: "r", Example: `{"n":1}`,
		Schema: `{"type":"object","properties":{"n":{"minimum":0}}}`},
		&pb.RegisterMessageTypeRequest{Name: "x", Schema: `{"minimum":0}`, Example: `1e10000000`}, &pb.RegisterMessageTypeRequest{Name: "", Aliases: []string{"", "a b"}, Schema: "{"})
}

func FuzzValidatePayload(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ValidatePayload, func(b *testkit.Bounds, r *pb.ValidatePayloadRequest) {
		b.Name(r.Type)
		b.Text(256<<10, r.Payload)
		b.Holds(r.Payload == "" || json.Valid([]byte(r.Payload)), "JSON", r.Payload)
	}, &pb.ValidatePayloadRequest{Type: "TaskComplete", Payload: `{}`}, &pb.ValidatePayloadRequest{Type: " ", Payload: "{"})
}

func FuzzGetMessageType(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).GetMessageType, func(b *testkit.Bounds, r *pb.GetMessageTypeRequest) { b.Name(r.Name) }, &pb.GetMessageTypeRequest{Name: "TaskComplete"})
}

func FuzzListMessageTypes(f *testing.F) {
	testkit.Fuzz(f, fuzzed(f).ListMessageTypes, func(b *testkit.Bounds, r *pb.ListMessageTypesRequest) {
		b.Optional(r.Family, r.Prefix)
		b.Page(r.PageSize)
	}, &pb.ListMessageTypesRequest{Family: "tasks", Prefix: "Task", PageSize: 7}, &pb.ListMessageTypesRequest{Prefix: "*", PageToken: "x"})
}

// fuzzed returns the service of a catalog without sessions.
func fuzzed(f *testing.F) *catalog.Service {
	clock := clockwork.NewRealClock()
	st := testkit.Store(f, f.TempDir(), clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(), catalog.Migrations())
	return catalog.New(st, events.New(st, clock, zap.NewNop()), directory.New())
}
