package auth_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/auth"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/testkit"
)

func TestRefuse_AddressThatFailsTooOftenIsSlowedDownAndAValidCredentialPasses(t *testing.T) {
	t.Parallel()
	k := newKit(t, apptest.WithFakeClock())
	_, secret := k.forAgent("a")
	wrong, valid := k.OverTCP("guess"), k.OverTCP(secret)
	for range 20 {
		apptest.Refused(t, k.see(wrong), codes.Unauthenticated, "CREDENTIAL_UNKNOWN")
	}
	err := k.see(wrong)
	apptest.Refused(t, err, codes.ResourceExhausted, "TOO_MANY_FAILED_ATTEMPTS")
	var wait time.Duration
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(*errdetails.RetryInfo); ok {
			wait = d.GetRetryDelay().AsDuration()
		}
	}
	if wait != 3*time.Second {
		t.Errorf("try again in %s, want 3s", wait)
	}
	apptest.Refused(t, k.see(k.OverTCP("")), codes.ResourceExhausted, "TOO_MANY_FAILED_ATTEMPTS")
	if err := k.see(valid); err != nil {
		t.Error(err)
	}
	c, ended := k.forAgent("b")
	k.revoke(c.GetId(), "")
	apptest.Refused(t, k.see(k.OverTCP(ended)), codes.Unauthenticated, "CREDENTIAL_REVOKED")
	k.Clock.Advance(3 * time.Second)
	apptest.Refused(t, k.see(wrong), codes.Unauthenticated, "CREDENTIAL_UNKNOWN")
	apptest.Refused(t, k.see(wrong), codes.ResourceExhausted, "TOO_MANY_FAILED_ATTEMPTS")
}

func TestRefuse_FailuresAreOneEventAMinute(t *testing.T) {
	t.Parallel()
	k := newKit(t, apptest.WithFakeClock())
	refused := k.follow("credential.refused")
	c, secret := k.forAgent("a")
	k.revoke(c.GetId(), "")
	for range 3 {
		apptest.Refused(t, k.see(k.OverTCP("guess")), codes.Unauthenticated, "CREDENTIAL_UNKNOWN")
	}
	apptest.Refused(t, k.see(k.OverTCP(secret)), codes.Unauthenticated, "CREDENTIAL_REVOKED")
	_, first := k.next(refused)
	want := map[string]any{"address": "127.0.0.1", "count": 1.0, "reason": "CREDENTIAL_UNKNOWN"}
	if fmt.Sprint(first) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", first, want)
	}
	k.Clock.Advance(time.Minute)
	e, second := k.next(refused)
	want = map[string]any{"address": "127.0.0.1", "count": 3.0, "reason": "CREDENTIAL_REVOKED", "credential": c.GetId()}
	if fmt.Sprint(second) != fmt.Sprint(want) || e.GetSeverity() != pb.Severity_SEVERITY_WARNING || !slices.Equal(e.GetRelated(), []string{c.GetId()}) {
		t.Errorf("%v %v, want %v", e, second, want)
	}
}

func TestUse_IsOneEventAnHourForEachAddress(t *testing.T) {
	t.Parallel()
	k := newKit(t, apptest.WithFakeClock())
	used := k.follow("credential.used")
	c, secret := k.forAgent("a")
	conn := k.OverTCP(secret)
	call := func() {
		t.Helper()
		apptest.NoError(t, k.see(conn))
	}
	call()
	call()
	_, first := k.next(used)
	want := map[string]any{"address": "127.0.0.1", "credential": c.GetId()}
	if fmt.Sprint(first) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", first, want)
	}
	apptest.NoError(t, k.see(k.OverTCP(k.Credential())))
	if _, file := k.next(used); file["credential"] != "operator.credential" {
		t.Errorf("%v: the second call with %s is no event", file, c.GetId())
	}
	k.Clock.Advance(time.Hour)
	call()
	if _, later := k.next(used); fmt.Sprint(later) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", later, want)
	}
}

func TestRefuse_MemoryIsBoundedAndIPv6CountsByNetwork(t *testing.T) {
	t.Parallel()
	clock := clockwork.NewFakeClock()
	st := testkit.Store(t, t.TempDir(), clock, events.Migrations(), auth.Migrations())
	r := auth.New(st, events.New(st, clock, zap.NewNop()), nil, "secret", clock, zap.NewNop())
	cause := fault.New(fault.Unauthenticated, "CREDENTIAL_UNKNOWN", "unknown")
	fail := func(client netip.Addr) bool {
		return fault.KindOf(r.Refuse(client, clock.Now(), cause)) == fault.Exhausted
	}
	for i := range 21 {
		if got, want := fail(netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1))), i == 20; got != want {
			t.Errorf("attempt %d of one /64 network: limited %v", i+1, got)
		}
	}
	one := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range 10_000 {
		fail(one(i))
	}
	if got := r.Clients(); got != 4097 {
		t.Errorf("%d addresses in memory, want 4096 and the account of all others", got)
	}
	if !fail(netip.MustParseAddr("192.0.2.1")) {
		t.Error("an address beyond the limit has its own account")
	}
	if fail(one(0)) {
		t.Error("an address within the limit shares an account")
	}
	r.CloseMinute(one(0)) // reports the second failure
	r.CloseMinute(one(0)) // a minute without any
	if got := r.Clients(); got != 4096 {
		t.Errorf("%d addresses in memory after a minute without a failure of one", got)
	}
}
