package locks_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/locks"
)

func FuzzAcquireToken(f *testing.F) {
	for _, r := range []*pb.AcquireTokenRequest{
		{}, {Type: "review", Scope: "feature/login"}, {Type: "a/b", Scope: "x"}, {Type: "review", Scope: "a\nb"},
		{Type: "review", Scope: "x", Wait: durationpb.New(time.Minute), MaxHold: durationpb.New(time.Hour), LongestHold: durationpb.New(time.Second)},
		{Type: "review", Scope: "x", Wait: durationpb.New(-1), MaxHold: durationpb.New(1), LongestHold: durationpb.New(1)},
		{RequestId: "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f", Type: "t", Scope: "s", Holder: "h", Reason: "r", KeepTicket: true, DryRun: true},
		{Type: "t", Scope: strings.Repeat("x", 513), Holder: "a\nb", Reason: strings.Repeat("x", 600)},
	} {
		seed(f, r)
	}
	fuzzTokens(f, &pb.AcquireTokenRequest{}, (*locks.TokenService).AcquireToken, func(t *testing.T, r *pb.AcquireTokenRequest) {
		wantToken(t, r)
		wantHold(t, r.MaxHold)
		wantHold(t, r.LongestHold)
		if wait := r.Wait.AsDuration(); wait < 0 || wait > 24*time.Hour || !line(r.Holder, 128) || !line(r.Reason, 512) {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzPassToken(f *testing.F) {
	seed(f, &pb.PassTokenRequest{Type: "review", Scope: "x", To: &pb.PassTokenRequest_Agent{Agent: "b"}, Note: "n", MaxHold: durationpb.New(time.Hour)})
	seed(f, &pb.PassTokenRequest{Type: "review", Scope: "x", To: &pb.PassTokenRequest_Role{Role: "critic"}, Holder: "h"})
	seed(f, &pb.PassTokenRequest{Type: "review", Scope: "x"})
	seed(f, &pb.PassTokenRequest{Type: "review", Scope: "x", To: &pb.PassTokenRequest_Role{}, Note: "\x01"})
	fuzzTokens(f, &pb.PassTokenRequest{}, (*locks.TokenService).PassToken, func(t *testing.T, r *pb.PassTokenRequest) {
		wantToken(t, r)
		wantHold(t, r.MaxHold)
		if !aName.MatchString(r.GetAgent()+r.GetRole()) || !line(r.Holder, 128) || !line(r.Note, 512) {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzExtendToken(f *testing.F) {
	seed(f, &pb.ExtendTokenRequest{Type: "review", Scope: "x", Holder: "h", MaxHold: durationpb.New(time.Hour)})
	seed(f, &pb.ExtendTokenRequest{Type: "review", Scope: "x", MaxHold: durationpb.New(-1)})
	fuzzTokens(f, &pb.ExtendTokenRequest{}, (*locks.TokenService).ExtendToken, func(t *testing.T, r *pb.ExtendTokenRequest) {
		wantToken(t, r)
		wantHold(t, r.MaxHold)
	})
}

func FuzzReleaseToken(f *testing.F) {
	seed(f, &pb.ReleaseTokenRequest{Type: "review", Scope: "x", Holder: "h"})
	seed(f, &pb.ReleaseTokenRequest{Type: "review", Holder: "a\tb"})
	fuzzTokens(f, &pb.ReleaseTokenRequest{}, (*locks.TokenService).ReleaseToken, func(t *testing.T, r *pb.ReleaseTokenRequest) {
		wantToken(t, r)
		if !line(r.Holder, 128) {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzRevokeToken(f *testing.F) {
	seed(f, &pb.RevokeTokenRequest{Type: "review", Scope: "x", Reason: "stuck"})
	seed(f, &pb.RevokeTokenRequest{Type: "review", Scope: "x", Ticket: -1})
	fuzzTokens(f, &pb.RevokeTokenRequest{}, (*locks.TokenService).RevokeToken, func(t *testing.T, r *pb.RevokeTokenRequest) {
		wantToken(t, r)
		if r.Reason == "" || !line(r.Reason, 512) || r.Ticket < 0 {
			t.Fatalf("accepted: %v", r)
		}
	})
}

func FuzzGetToken(f *testing.F) {
	seed(f, &pb.GetTokenRequest{Type: "review", Scope: "x"})
	seed(f, &pb.GetTokenRequest{Type: "-", Scope: "\x00"})
	fuzzTokens(f, &pb.GetTokenRequest{}, (*locks.TokenService).GetToken, func(t *testing.T, r *pb.GetTokenRequest) { wantToken(t, r) })
}

func FuzzListTokens(f *testing.F) {
	seed(f, &pb.ListTokensRequest{Type: "review", Agent: "a", State: contested, PageSize: 7})
	seed(f, &pb.ListTokensRequest{State: 9, PageSize: -1})
	seed(f, &pb.ListTokensRequest{PageToken: "x"})
	fuzzTokens(f, &pb.ListTokensRequest{}, (*locks.TokenService).ListTokens, func(t *testing.T, r *pb.ListTokensRequest) {
		if r.PageSize < 0 || r.PageSize > 1000 || r.State < 0 || r.State > 3 || r.Type != "" && !aName.MatchString(r.Type) || r.Agent != "" && !aName.MatchString(r.Agent) {
			t.Fatalf("accepted: %v", r)
		}
	})
}

var aName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\z`)

func fuzzTokens[Q proto.Message, A any](f *testing.F, empty Q, rpc func(*locks.TokenService, context.Context, Q) (A, error), accepted func(*testing.T, Q)) {
	f.Helper()
	fuzzTable(f, empty, func(table *locks.Table) func(context.Context, Q) (A, error) {
		return func(ctx context.Context, r Q) (A, error) { return rpc(locks.NewTokenService(table), ctx, r) }
	}, accepted)
}

func wantToken(t *testing.T, r interface {
	GetType() string
	GetScope() string
}) {
	t.Helper()
	if !aName.MatchString(r.GetType()) || r.GetScope() == "" || !line(r.GetScope(), 512) {
		t.Fatalf("token %q of type %q", r.GetScope(), r.GetType())
	}
}

func wantHold(t *testing.T, d *durationpb.Duration) {
	t.Helper()
	if hold := d.AsDuration(); d != nil && (hold < time.Second || hold > 7*24*time.Hour) {
		t.Fatalf("hold %v", hold)
	}
}
