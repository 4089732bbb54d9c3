package client_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// keepRun is what happened to a hold: the times of the extensions, and when it was lost.
type keepRun struct {
	extended []time.Duration
	lost     time.Duration // 0 = it was not
}

// isKept reports whether the hold was not lost, and was extended at these times.
func (k keepRun) isKept(at ...time.Duration) bool { return k.lost == 0 && slices.Equal(k.extended, at) }

// keeping keeps a hold of 8 s for 30 s in a bubble of synctest. extend gets the number of the extension, beginning with
// 1. Its owner gives it away after goneAfter; 0 = never.
func keeping(t *testing.T, goneAfter time.Duration, extend func(n int) error) (k keepRun) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		h, gone := client.KeptHold(t.Context(), 8*time.Second, func() error {
			k.extended = append(k.extended, time.Since(began))
			return extend(len(k.extended))
		})
		if goneAfter > 0 {
			time.AfterFunc(goneAfter, func() { close(gone) })
		}
		select {
		case <-h.Context().Done():
			k.lost = time.Since(began)
			if !errors.As(h.Lost(), new(*client.HoldLostError)) {
				t.Errorf("the cause is %v", h.Lost())
			}
		case <-time.After(30 * time.Second):
		}
		apptest.NoError(t, h.Release(t.Context()))
	})
	return k
}

func TestHold_IsExtendedAtHalfTime(t *testing.T) {
	t.Parallel()
	k := keeping(t, 13*time.Second, func(int) error { return nil })
	if !k.isKept(4*time.Second, 8*time.Second, 12*time.Second) {
		t.Errorf("%+v", k)
	}
}

func TestHold_ABrokerThatIsAwayIsAskedAgainUntilAQuarterOfTheTimeIsLeft(t *testing.T) {
	t.Parallel()
	away := status.Error(codes.Unavailable, "no connection")
	k := keeping(t, 0, func(int) error { return away })
	if k.lost != 6*time.Second || len(k.extended) != 5 { // the first after 4 s, then each 400 ms
		t.Errorf("%+v", k)
	}
	k = keeping(t, 9*time.Second, func(n int) error {
		if n < 3 {
			return away
		}
		return nil
	})
	if !k.isKept(4*time.Second, 4400*time.Millisecond, 4800*time.Millisecond, 8800*time.Millisecond) {
		t.Errorf("%+v", k)
	}
}

func TestHold_ARefusedExtensionIsALossUnlessTheAgentHasReleased(t *testing.T) {
	t.Parallel()
	refuse := func(int) error { return status.Error(codes.NotFound, "no such lock") }
	if k := keeping(t, 4500*time.Millisecond, refuse); !k.isKept(4 * time.Second) {
		t.Errorf("released: %+v", k)
	}
	if k := keeping(t, 0, refuse); k.lost != 5*time.Second {
		t.Errorf("%+v", k)
	}
}

// held takes the lock of a.go, or the token review of login.
func held(t *testing.T, c *client.Client, kind string) *client.Hold {
	t.Helper()
	var h *client.Hold
	var err error
	if kind == "lock" {
		h, err = c.HoldLocks(t.Context(), lockOf("a.go"), client.HoldOptions{})
	} else {
		h, err = c.HoldToken(t.Context(), &pb.AcquireTokenRequest{Type: "review", Scope: "login"}, client.HoldOptions{})
	}
	apptest.NoError(t, err)
	return h
}

func TestHold_EndsAtItsReleaseAndRefusesTheCallsThatNeedIt(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lock", "token"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			a, b := d.agent(t, "a", ""), d.agent(t, "b", "")
			h := held(t, a, kind)
			apptest.NoError(t, apptest.Err(h.Client().Agents().Heartbeat(t.Context(), &pb.HeartbeatRequest{})))
			if busy := (*client.BusyError)(nil); kind == "lock" {
				_, err := b.HoldLocks(t.Context(), lockOf("a.go"), client.HoldOptions{})
				if !errors.As(err, &busy) || busy.Grant.GetObstacles()[0].GetAgent() != "a" || busy.Error() == "" {
					t.Errorf("another agent got %v", err)
				}
			}
			apptest.NoError(t, h.Release(t.Context()))
			apptest.NoError(t, h.Release(t.Context())) // has no effect
			if h.Lost() != nil || h.Context().Err() == nil {
				t.Errorf("after the release: %v, %v", h.Lost(), h.Context().Err())
			}
			err := apptest.Err(h.Client().Agents().Heartbeat(t.Context(), &pb.HeartbeatRequest{}))
			if client.Reason(err) != "FENCE_LOST" {
				t.Errorf("a call that needs the hold: %v", err)
			}
			apptest.NoError(t, held(t, b, kind).Release(t.Context()))
		})
	}
}

func TestHold_WhatAnOperatorTakesIsLostAtOnce(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lock", "token"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			h := held(t, d.agent(t, "a", ""), kind)
			operator := d.dial(t, "")
			if kind == "lock" {
				apptest.NoError(t, apptest.Err(operator.Locks().ForceReleaseLocks(t.Context(),
					&pb.ForceReleaseLocksRequest{Agent: "a", Reason: "it hangs"})))
			} else {
				apptest.NoError(t, apptest.Err(operator.Tokens().RevokeToken(t.Context(),
					&pb.RevokeTokenRequest{Type: "review", Scope: "login", Reason: "it hangs"})))
			}
			<-h.Context().Done()
			if lost := (*client.HoldLostError)(nil); !errors.As(h.Lost(), &lost) || lost.Why == "" {
				t.Errorf("lost: %v", h.Lost())
			}
			apptest.NoError(t, h.Release(t.Context()))
		})
	}
}

func TestHold_WhatItsOwnAgentGivesAwayIsNotLost(t *testing.T) {
	t.Parallel()
	token := &pb.AcquireTokenRequest{Type: "review", Scope: "login", Holder: "me"}
	lock := lockOf("a.go")
	lock.Holder = "me"
	for name, give := range map[string]func(ctx context.Context, a *client.Client) error{
		"token passed": func(ctx context.Context, a *client.Client) error {
			return apptest.Err(a.Tokens().PassToken(ctx, &pb.PassTokenRequest{Type: "review", Scope: "login", Holder: "me",
				To: &pb.PassTokenRequest_Agent{Agent: "b"}}))
		},
		"token released": func(ctx context.Context, a *client.Client) error {
			return apptest.Err(a.Tokens().ReleaseToken(ctx, &pb.ReleaseTokenRequest{Type: "review", Scope: "login", Holder: "me"}))
		},
		"lock released": func(ctx context.Context, a *client.Client) error {
			return apptest.Err(a.Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Holder: "me", All: true}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			a := d.agent(t, "a", "")
			d.agent(t, "b", "")
			var h *client.Hold
			var err error
			if name == "lock released" {
				h, err = a.HoldLocks(t.Context(), lock, client.HoldOptions{})
			} else {
				h, err = a.HoldToken(t.Context(), token, client.HoldOptions{})
			}
			apptest.NoError(t, err)
			apptest.NoError(t, give(t.Context(), a))
			<-h.Gone()
			if h.Context().Err() != nil || h.Lost() != nil {
				t.Errorf("the hold was lost: %v", h.Lost())
			}
			apptest.NoError(t, h.Release(t.Context()))
		})
	}
}

func TestHold_AWaitThatEndsLeavesNoPlaceInTheQueue(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	h := held(t, d.agent(t, "a", ""), "lock")
	request := lockOf("a.go")
	request.Wait = durationpb.New(time.Millisecond)
	if _, err := d.agent(t, "b", "").HoldLocks(t.Context(), request, client.HoldOptions{}); !errors.As(err, new(*client.BusyError)) {
		t.Errorf("got %v", err)
	}
	if tickets := listLocks(t, d.dial(t, "")).GetTickets(); len(tickets) > 0 {
		t.Errorf("the queue has %v", tickets)
	}
	apptest.NoError(t, h.Release(t.Context()))
}

func TestHold_OutlivesARestartOfTheBroker(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	h := held(t, d.agent(t, "a", ""), "lock")
	d.restart(t)
	if locks := listLocks(t, d.dial(t, "")).GetLocks(); len(locks) != 1 || locks[0].GetFence() != h.Fence() || h.Lost() != nil {
		t.Errorf("after the restart: %v, %v", locks, h.Lost())
	}
	apptest.NoError(t, h.Release(context.Background()))
}

func TestHold_AWaitContinuesThroughARestartOfTheBroker(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	h := held(t, d.agent(t, "a", ""), "lock")
	b := d.agent(t, "b", "")
	granted := make(chan error, 1)
	go func() {
		second, err := b.HoldLocks(t.Context(), patientLockOf("a.go"), client.HoldOptions{})
		if err == nil {
			err = second.Release(t.Context())
		}
		granted <- err
	}()
	operator := d.dial(t, "")
	for _, err := range operator.FollowEvents(t.Context(), client.EventOptions{Filter: &pb.EventFilter{Types: []string{"lock.queued"}}}) {
		apptest.NoError(t, err)
		break
	}
	d.restart(t)
	apptest.NoError(t, h.Release(t.Context()))
	apptest.NoError(t, next(t, granted))
}
