package testkit

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/work"
)

// Fuzz sends requests to an RPC of a service that knows no session, as an agent. The service must
// answer each with fault.Invalid or, if it accepts the request, with fault.NotFound. accepted checks
// the accepted requests against the bounds of the API. The fuzzer starts from the seeds.
func Fuzz[Q proto.Message, A any](
	f *testing.F, rpc func(context.Context, Q) (A, error), accepted func(*Bounds, Q), seeds ...Q,
) {
	f.Helper()
	for _, q := range seeds {
		wire, err := proto.Marshal(q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	var empty Q
	ctx := identity.NewContext(context.Background(), identity.Caller{Access: identity.Agent, Session: "none", Agent: "a"})
	f.Fuzz(func(t *testing.T, wire []byte) {
		q := empty.ProtoReflect().New().Interface().(Q)
		if proto.Unmarshal(wire, q) != nil {
			t.Skip() // gRPC refuses it
		}
		_, err := rpc(ctx, q)
		switch fault.KindOf(err) {
		case fault.NotFound:
			accepted(&Bounds{t}, q)
		case fault.Invalid:
		default:
			t.Fatalf("%v: %v", q, err)
		}
	})
}

type sender = work.Post // an embedded field named Post would hide the method

// NoPost is a post that permits every call to send, and cannot send.
type NoPost struct{ sender }

// Admit implements work.Post.
func (NoPost) Admit(context.Context, identity.Caller, int) error { return nil }

// Bounds fails a test for accepted values that are out of bounds.
type Bounds struct{ *testing.T }

var name = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z`)

// Holds wants a condition.
func (b *Bounds) Holds(ok bool, what string, values ...any) {
	b.Helper()
	if !ok {
		b.Fatalf("accepted: %s %v", what, values)
	}
}

// Name wants names.
func (b *Bounds) Name(all ...string) {
	b.Helper()
	for _, s := range all {
		b.Holds(name.MatchString(s), "name", s)
	}
}

// Optional wants names or nothing.
func (b *Bounds) Optional(all ...string) {
	b.Helper()
	for _, s := range all {
		b.Holds(s == "" || name.MatchString(s), "name", s)
	}
}

// Text wants texts of up to most bytes.
func (b *Bounds) Text(most int, all ...string) {
	b.Helper()
	for _, s := range all {
		b.Holds(len(s) <= most && utf8.ValidString(s) && !strings.ContainsRune(s, 0), "text", s)
	}
}

// Line wants texts of up to most bytes without control characters.
func (b *Bounds) Line(most int, all ...string) {
	b.Helper()
	b.Text(most, all...)
	for _, s := range all {
		b.Holds(!strings.ContainsFunc(s, unicode.IsControl), "line", s)
	}
}

// Required wants texts that are not empty.
func (b *Bounds) Required(all ...string) {
	b.Helper()
	for _, s := range all {
		b.Holds(s != "", "an empty text")
	}
}

// Between wants least ≤ n ≤ most.
func (b *Bounds) Between(n, least, most int64) {
	b.Helper()
	b.Holds(n >= least && n <= most, "number", n)
}

// Page wants a page size.
func (b *Bounds) Page(n int32) {
	b.Helper()
	b.Between(int64(n), 0, 1000)
}

// Wait wants nothing, or a wait of up to one hour.
func (b *Bounds) Wait(d *durationpb.Duration) {
	b.Helper()
	b.Holds(d == nil || d.CheckValid() == nil && d.AsDuration() >= 0 && d.AsDuration() <= time.Hour, "wait", d)
}

// Labels wants labels.
func (b *Bounds) Labels(labels map[string]string) {
	b.Helper()
	b.Between(int64(len(labels)), 0, 64)
	for k, v := range labels {
		b.Required(k)
		b.Line(256, k, v)
	}
}
